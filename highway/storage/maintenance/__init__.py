"""Sealed segments written anew behind everybody's back: small frames become large ones, superfluous records go."""

__all__: list[str] = []
