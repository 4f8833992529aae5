//! The command line: what the binary does with its arguments.
//!
//! Data goes to standard output, words to standard error. The exit code tells scripts what happened
//! ([`Failure`]).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::{Loaded, Place};

mod check;
#[cfg(feature = "sqlite")]
mod demo;
mod discarded;
mod failure;
mod keys;
mod migrate;
mod operator;
mod output;
mod pause;
mod publish;
mod run;
mod show;
mod signals;
mod status;
mod target;
mod verify;

use failure::Failure;
use output::Output;

/// Delivers events from transactional outboxes to brokers and files: every committed event, at least
/// once, in order per ordering key.
#[derive(Debug, Parser)]
#[command(name = "outboxd", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration, 3 a check found something, 4 a database
cannot be reached, 5 a sink cannot be reached.

Start with:
  outboxd demo                             see it work, nothing to install or configure
  outboxd --config outboxd.toml migrate    create the outbox in your database
  outboxd --config outboxd.toml check      is everything in place?
  outboxd --config outboxd.toml run        deliver";

#[derive(Debug, Args)]
struct Global {
    /// Configuration file. Without it: the one named by OUTBOXD_CONFIG, else outboxd.toml in the working directory, if there is one. Variables
    /// such as OUTBOXD__DATABASES__ORDERS__URL go before the file.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How results are written on standard output.
    #[arg(long, global = true, value_name = "FORM", value_enum, default_value_t = Form::Words)]
    output: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people.
    #[value(alias = "human", alias = "text")]
    Words,
    /// For programs: one JSON document.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Deliver events until stopped (the service).
    Run(run::RunArgs),
    #[cfg(feature = "sqlite")]
    /// See it work: a temporary outbox, a writer, the real relay, events on standard output.
    Demo(demo::DemoArgs),
    /// Is everything in place: configuration, databases, outboxes, sinks?
    Check,
    /// Create the outbox in each database, or bring it up to date. Safe to repeat and to run from many
    /// machines at once.
    Migrate(migrate::MigrateArgs),
    /// Put an event into an outbox.
    Publish(publish::PublishArgs),
    /// What is pending, who delivers it, what was set aside.
    Status(status::StatusArgs),
    /// Events that were set aside, and what to do with them.
    Discarded(discarded::DiscardedArgs),
    /// What ordering keys wait for; pause, resume or skip one.
    Keys(keys::KeysArgs),
    /// Hold back a source, a sink or a route.
    Pause(pause::PauseArgs),
    /// Let a paused source, sink or route go on.
    Resume(pause::PauseArgs),
    /// Compare what was delivered with what the sinks hold.
    Verify(verify::VerifyArgs),
    /// The configuration in effect, and what a configuration may say.
    Config(show::ConfigArgs),
}

impl Global {
    fn load(&self) -> Result<Loaded, Failure> {
        // An empty OUTBOXD_CONFIG is how container tools write "not set".
        let file = self
            .config
            .clone()
            .filter(|path| !path.as_os_str().is_empty());
        Ok(Loaded::from(&Place::of_process(file))?)
    }

    /// Loads the configuration for a command at the prompt: its warnings are words, its log is quiet.
    fn load_for_command(&self) -> Result<Loaded, Failure> {
        let loaded = self.load()?;
        let mut log = loaded.config.log.clone();
        if !loaded.given.contains_key("log.level") {
            log.level = "warn".into();
        }
        crate::logging::start(&log);
        for warning in &loaded.warnings {
            output::say(format_args!("warning: {warning}"));
        }
        Ok(loaded)
    }
}

/// Runs the binary.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    #[cfg(feature = "nats")]
    install_crypto();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            output::say(format_args!("error: cannot start: {error}"));
            return ExitCode::from(1);
        }
    };
    let result = runtime.block_on(dispatch(cli));
    // A blocking call that hangs (a dead network disk) must not keep the process from ending.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Another crate in the tree could bring a second provider; rustls would then refuse to choose.
#[cfg(feature = "nats")]
fn install_crypto() {
    // An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

async fn dispatch(cli: Cli) -> Result<(), Failure> {
    let out = Output::new(cli.global.output == Form::Json);
    match cli.command {
        Command::Run(args) => run::run(&cli.global, &args).await,
        #[cfg(feature = "sqlite")]
        Command::Demo(args) => demo::run(&args).await,
        Command::Check => check::run(&cli.global, &out).await,
        Command::Migrate(args) => migrate::run(&cli.global, &args, &out).await,
        Command::Publish(args) => publish::run(&cli.global, &args, &out).await,
        Command::Status(args) => status::run(&cli.global, &args, &out).await,
        Command::Discarded(args) => discarded::run(&cli.global, &args, &out).await,
        Command::Keys(args) => keys::run(&cli.global, &args, &out).await,
        Command::Pause(args) => pause::run(&cli.global, &args, pause::Action::Pause, &out).await,
        Command::Resume(args) => pause::run(&cli.global, &args, pause::Action::Resume, &out).await,
        Command::Verify(args) => verify::run(&cli.global, &args, &out).await,
        Command::Config(args) => show::run(&cli.global, &args, &out),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
