//! A sink in memory, for tests.
