//! JSON lines into a file.
