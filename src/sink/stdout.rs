//! JSON lines on standard output.
