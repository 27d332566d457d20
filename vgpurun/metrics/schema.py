"""How the history is laid out."""

APPLICATION_ID = 0x76677075  # "vgpu"
VERSION = 3

_TABLES = """
CREATE TABLE IF NOT EXISTS tenant (
  id INTEGER PRIMARY KEY, container TEXT NOT NULL, name TEXT NOT NULL, user TEXT NOT NULL, kind TEXT NOT NULL,
  UNIQUE (container, name, user));
CREATE TABLE IF NOT EXISTS gpu (
  id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, number TEXT NOT NULL, model TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS use (
  span_s INTEGER NOT NULL, start_s INTEGER NOT NULL,
  tenant INTEGER NOT NULL REFERENCES tenant, gpu INTEGER NOT NULL REFERENCES gpu,
  ran_s REAL NOT NULL, measured_s REAL NOT NULL, estimated_s REAL NOT NULL, gpu_s REAL NOT NULL,
  max_share REAL NOT NULL, memory_byte_s REAL NOT NULL, memory_peak_bytes INTEGER NOT NULL,
  idle_s REAL NOT NULL DEFAULT 0, given_back_s REAL NOT NULL DEFAULT 0,
  PRIMARY KEY (span_s, start_s, tenant, gpu)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS recorded (
  span_s INTEGER NOT NULL, start_s INTEGER NOT NULL, sampled_s REAL NOT NULL, counted_s REAL NOT NULL,
  PRIMARY KEY (span_s, start_s)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS mark (
  tenant INTEGER NOT NULL REFERENCES tenant, gpu INTEGER NOT NULL REFERENCES gpu,
  busy_s REAL NOT NULL, at_s REAL NOT NULL, PRIMARY KEY (tenant, gpu)) WITHOUT ROWID;
"""
# Steps from older versions, after the tables that they lack altogether.
_IN_VERSION_2 = "INSERT INTO recorded SELECT DISTINCT span_s, start_s, span_s, span_s FROM use;"
_IN_VERSION_3 = """
ALTER TABLE use ADD COLUMN idle_s REAL NOT NULL DEFAULT 0;
ALTER TABLE use ADD COLUMN given_back_s REAL NOT NULL DEFAULT 0;
"""


def layout(version: int) -> str:
    """Return what lays out a file of this version, 0 for a new one, as it is now: one transaction."""
    return f"""
BEGIN IMMEDIATE;
{_TABLES}
{_IN_VERSION_2 if version == 1 else ""}
{_IN_VERSION_3 if version in (1, 2) else ""}
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
COMMIT;
"""
