"""Installed plugins: the entry points of group ``octavo``."""

from __future__ import annotations

from importlib.metadata import entry_points

from octavo_registry.errors import PluginError
from octavo_registry.manifest import PluginRecord

GROUP = "octavo"


def installed_plugins() -> list[PluginRecord]:
    """Return all installed plugins, sorted by name, importing none."""
    records: dict[str, PluginRecord] = {}
    for point in entry_points(group=GROUP):
        record = PluginRecord(
            name=point.name,
            module=point.module,
            distribution=point.dist.name if point.dist else None,
            version=point.dist.version if point.dist else None,
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
