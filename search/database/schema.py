"""Schema of the tuning database."""

from __future__ import annotations

import sqlite3

from ...ir import renew_keywords

#: Version of the schema and of the text of schedules.
VERSION = 2
SCHEMA = """
create table if not exists problems (
  key text primary key, description text not null, work text not null, label text not null,
  done integer not null default 0, best text, seconds real, spread real, source text, trials integer, points real,
  proven real, at real not null);
create index if not exists problems_work on problems (work);
create table if not exists trials (
  problem text not null, schedule text not null, key text not null, outcome text not null, seconds real, spread real,
  registers integer, source text, message text, bound real, score real, at real not null,
  primary key (problem, schedule)) without rowid;
create index if not exists trials_key on trials (key);
create table if not exists costs (key text primary key, seconds real not null);
create table if not exists decisions (
  key text primary key, description text not null, label text not null, decisions text not null,
  problems text not null, seconds real not null, finished integer not null, at real not null);
create table if not exists offers (
  problem text primary key, best text not null, seconds real not null, spread real not null, source text not null,
  trials integer not null, points real not null, proven real not null, finished integer not null);
create table if not exists offered_decisions (
  key text primary key, description text not null, label text not null, decisions text not null,
  problems text not null, seconds real not null, finished integer not null, at real not null);
create table if not exists written (point text primary key, source text not null, version text not null) without rowid;
create table if not exists times (
  name text primary key, seconds real not null, source text not null, schedule text not null);
create table if not exists expected (name text primary key, seconds real not null, version text not null);
"""
_SCHEDULES = (("trials", "schedule"), ("problems", "best"), ("offers", "best"), ("times", "schedule"))


def renew_schedules(connection: sqlite3.Connection) -> None:
    """Replace the keywords of version 1 in all schedules; keys stay."""
    connection.create_function("renewed", 1, lambda text: renew_keywords(text) if isinstance(text, str) else text)
    for table, column in _SCHEDULES:
        connection.execute(f"update or replace {table} set {column} = renewed({column})")


#: Upgrade to `VERSION` by earlier version.
UPGRADES = {1: renew_schedules}
