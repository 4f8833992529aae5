//! Measures the relay: rates, latencies, what waits, what writers pay, and what all of it costs, each beside something
//! that was measured in the same sitting.
//!
//! ```sh
//! cargo bench --bench relay                           # everything, three rounds
//! cargo bench --bench relay -- --rounds 5 drain       # a group, with what it is compared with
//! cargo bench --bench relay -- --events 20000 "1 key" # lines whose name contains a word
//! cargo bench --bench relay -- --large --write        # with backlogs of millions, into docs/performance.md
//! ```
//!
//! It starts its own PostgreSQL and nats-server, and the relay in a process of its own. All of it shares one machine, so
//! each figure comes with the processor time of each process and with what everybody else used meanwhile. After
//! each line an audit looks at what arrived: every event, once, each key in its order. If one finds something the
//! program fails.
//!
//! - A group of measurements is one file: its lines, the columns of its table, its goals. [`registry`] lists them.
//! - [`measurement`] says what a line and a figure are, [`sitting`] runs them, [`report`] makes tables of them.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    missing_docs,
    unreachable_pub
)]

mod arguments;
mod audit;
mod ceilings;
mod costs;
mod cpu;
mod drains;
mod files;
mod floor;
mod latency;
mod measurement;
mod outbox;
mod page;
mod plot;
mod poison;
mod process;
mod registry;
mod relay_process;
mod report;
mod sitting;
mod stage;
mod stored;
mod waits;
mod writers;

// The servers of the integration tests.
#[path = "../../tests/it"]
mod it {
    pub mod support;
}

use std::process::ExitCode;

use arguments::Arguments;
use sitting::Sitting;

/// As the binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Log output as the binary has it, so that spans and events cost what they cost there.
    outboxd::logging::start(&outboxd::config::Log {
        level: "info,sqlx=error".to_owned(),
        ..outboxd::config::Log::default()
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut given = std::env::args().skip(1);
    if given.next().as_deref() == Some(process::ARGUMENT) {
        let relayed = given.next().unwrap();
        runtime.block_on(relay_process::run(&relayed));
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::read();
    if runtime.block_on(measure(arguments)) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// False if an audit found something, or the page could not be written.
async fn measure(arguments: Arguments) -> bool {
    let groups = registry::groups(&arguments);
    let sitting = Sitting::start(arguments).await;
    let conditions = report::conditions(&sitting.arguments, &sitting.stage).await;
    println!("{conditions}");
    sitting
        .stage
        .count_statements(sitting.arguments.statements)
        .await;
    let clean = sitting.measure(&groups).await;
    let mut tables = Vec::new();
    for group in &groups {
        if let Some(table) = report::table(group, &sitting.results) {
            println!("\n{}\n\n{table}", group.name);
            tables.push((group.name, table));
        }
    }
    clean && (!sitting.arguments.write || write(&sitting, &groups, &tables, &conditions))
}

/// Only what was measured as a whole goes into the page.
fn write(
    sitting: &Sitting,
    groups: &[measurement::Group],
    tables: &[(&'static str, String)],
    conditions: &str,
) -> bool {
    let whole = |group: &measurement::Group| {
        let mut lines = group.lines.iter();
        lines.all(|line| sitting.results.has(&line.name))
    };
    let mut wanted = Vec::new();
    for group in groups.iter().filter(|group| whole(group)) {
        let table = tables.iter().find(|(name, _)| *name == group.name);
        wanted.extend(table.cloned());
    }
    let plotted = ["ceiling", "floor", "drain"];
    let bars: Vec<_> = groups
        .iter()
        .filter(|group| plotted.contains(&group.name))
        .collect();
    let mut result = Ok(());
    // The plot stands above the table of the drains, and is as new as they are.
    if let Some((_, table)) = wanted.iter_mut().find(|(group, _)| *group == "drain")
        && let Some(svg) = plot::rates(&bars, &sitting.results, conditions)
    {
        table.insert_str(0, "![Events a second, as bars](performance.svg)\n\n");
        result = page::write_plot(&svg);
    }
    result = result.and_then(|()| page::write(&wanted, conditions));
    if let Err(message) = &result {
        eprintln!("the page could not be written: {message}");
    }
    result.is_ok()
}
