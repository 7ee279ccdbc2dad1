"""Installed plugins: the entry points of group ``octavo``."""

from __future__ import annotations

from importlib.metadata import Distribution, entry_points

from octavo_registry.errors import PluginError
from octavo_registry.manifest import PluginRecord

GROUP = "octavo"


def installed_plugins() -> list[PluginRecord]:
    """Return all installed plugins, sorted by name, importing none."""
    records: dict[str, PluginRecord] = {}
    # Either reads all that the distribution says of itself, its README too.
    named: dict[Distribution, tuple[str, str]] = {}
    for point in entry_points(group=GROUP):
        dist = point.dist
        if dist is not None and dist not in named:
            named[dist] = dist.name, dist.version
        distribution, version = (None, None) if dist is None else named[dist]
        record = PluginRecord(
            name=point.name, module=point.module, distribution=distribution, version=version
        )
        if point.attr:
            raise PluginError(
                f"plugin {point.name!r} of {record.distribution}: entry point {point.value!r} must "
                f"be a module, as in {point.module!r}"
            )
        other = records.setdefault(record.name, record)
        if other != record:
            raise PluginError(
                f"two plugins are named {record.name!r}: {other.module!r} of {other.distribution} "
                f"and {record.module!r} of {record.distribution}; uninstall one"
            )
    return [records[name] for name in sorted(records)]
