//! A source in memory, for tests.
