"""The matching rules of MQTT 3.1.1 section 4.7 in the plainest form, to hold the tries against."""

from __future__ import annotations

from hypothesis import strategies as st

__all__ = ["naive_matches", "topic_filters", "topic_names"]


def naive_matches(topic_filter: bytes, topic_name: bytes) -> bool:
    if topic_name.startswith(b"$") and topic_filter[:1] in (b"+", b"#"):
        return False
    filter_levels, name_levels = topic_filter.split(b"/"), topic_name.split(b"/")
    if filter_levels[-1] == b"#":
        parent = filter_levels[:-1]
        return len(name_levels) >= len(parent) and all(
            level in (b"+", name) for level, name in zip(parent, name_levels, strict=False)
        )
    return len(filter_levels) == len(name_levels) and all(
        level in (b"+", name) for level, name in zip(filter_levels, name_levels, strict=True)
    )


# Few and short levels, so that names and filters meet often; an empty level and `$` are special cases of the rules.
_LEVELS = st.sampled_from([b"a", b"b", b"", b"$SYS", b"$x"])
_NAME_LEVELS = st.lists(_LEVELS, min_size=1, max_size=5)


def _joined(levels: list[bytes]) -> bytes:
    return b"/".join(levels) or b"a"


topic_names = _NAME_LEVELS.map(_joined)
topic_filters = st.tuples(st.lists(_LEVELS | st.just(b"+"), min_size=1, max_size=5), st.sampled_from([[], [b"#"]])).map(
    lambda parts: _joined(parts[0] + parts[1])
) | st.just(b"#")
