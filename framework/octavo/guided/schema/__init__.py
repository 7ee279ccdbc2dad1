"""What a JSON schema means: any schema as a core schema of few shapes, or refused by name."""

from octavo.guided.schema.core import CoreSchema, core_schema
from octavo.guided.schema.features import FEATURES
from octavo.guided.schema.quoting import without_nul

__all__ = ["FEATURES", "CoreSchema", "core_schema", "without_nul"]
