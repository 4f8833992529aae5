//! The conformance suite every sink passes.
