"""What is done behind everybody's back: sealed segments are written anew or read again, a full disk is waited for."""

__all__: list[str] = []
