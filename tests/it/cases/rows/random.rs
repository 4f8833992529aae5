//! Random rows.
