//! The outboxd binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    outboxd::cli::main()
}
