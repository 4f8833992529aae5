//! The integration tests: one binary, real servers, each started by the tests themselves.
