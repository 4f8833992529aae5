//! Reading: the file, then environment variables over it, each value with its origin.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use super::environment::Environment;
use super::tree::{self, Node, Origin, Table, Value};
use super::{Config, ConfigError, check, file, keys, layers};

/// Read when no file is named, if it exists in the working directory.
pub const DEFAULT_FILE: &str = "outboxd.toml";

/// What a variable starts with to override a key: `OUTBOXD__RETRY__BASE` is `retry.base`.
pub const ENV_PREFIX: &str = "OUTBOXD__";

/// Names the configuration file; the one variable with our name that is not a key.
pub(super) const FILE_VARIABLE: &str = "OUTBOXD_CONFIG";

/// Where configuration is read from.
#[derive(Clone, Default)]
pub struct Place {
    /// The file; `None` when everything comes from the environment.
    pub file: Option<PathBuf>,
    /// Environment variables; those of other programs are passed over.
    pub env: Vec<(OsString, OsString)>,
}

/// The values of variables may be secrets, ours and other programs'.
impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("file", &self.file)
            .field("env", &format_args!("{} variables", self.env.len()))
            .finish()
    }
}

impl Place {
    /// This process's environment, and `file`, or else the one that OUTBOXD_CONFIG names, or else
    /// [`DEFAULT_FILE`] if it is there.
    pub fn of_process(file: Option<PathBuf>) -> Self {
        // An empty variable is how container tools write "not set".
        let named = || {
            std::env::var_os(FILE_VARIABLE)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from)
        };
        let default = || Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists());
        Self {
            file: file.or_else(named).or_else(default),
            env: std::env::vars_os().collect(),
        }
    }
}

/// A configuration that passed every check.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// Which keys were given, and where (a file and its line, a variable). All others have their defaults.
    pub given: BTreeMap<String, String>,
    /// What is allowed but probably not meant, one sentence each.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// Everything that is wrong, at once. What would only follow from another mistake is left out: in a
    /// section with a key that is unknown or unreadable, nothing else is called missing.
    pub fn from(place: &Place) -> Result<Self, ConfigError> {
        let environment = Environment::of(&place.env);
        let mut problems = environment.problems.clone();
        let file = match place.file.as_deref().map(file::read).transpose() {
            Ok(file) => file.unwrap_or_default(),
            Err(unreadable) => {
                problems.extend(unreadable);
                return Err(ConfigError::of(problems));
            }
        };
        let mut tree = layers::merged(file, environment.layer()).map_err(ConfigError::one)?;
        let mut broken = Broken::default();
        for (path, words) in keys::misplaced(&tree) {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            tree::remove(&mut tree, &path);
            broken.add(&path);
            problems.push(words);
        }
        let given = tree::origins(&tree);
        let config = parse(&mut tree, &given, &mut broken, &mut problems);
        problems.extend(check::problems(&config, &given, &broken));
        if !problems.is_empty() {
            return Err(ConfigError::of(problems));
        }
        let mut warnings = environment.warnings;
        warnings.extend(check::warnings(&config));
        Ok(Self {
            config,
            given,
            warnings,
        })
    }
}

/// Sections in which something was unknown or unreadable: what is missing there may have been meant.
#[derive(Debug, Default)]
pub(super) struct Broken {
    sections: BTreeSet<String>,
    /// A whole section is unknown, so anything may be missing.
    everywhere: bool,
}

impl Broken {
    fn add(&mut self, path: &[&str]) {
        self.sections.insert(keys::section_of(path));
        self.everywhere |= path.len() == 1;
    }

    /// Is nothing known to be wrong with this section (`lease`, `sinks.events`)?
    pub(super) fn spares(&self, section: &str) -> bool {
        !self.everywhere && !self.sections.contains(section)
    }
}

/// Reads the values. One that cannot be read is told, taken out, and the rest is read again.
fn parse(
    tree: &mut Table,
    given: &BTreeMap<String, String>,
    broken: &mut Broken,
    problems: &mut Vec<String>,
) -> Config {
    loop {
        let root = Node {
            value: Value::Table(tree.clone()),
            origin: Origin::told(""),
        };
        let error = match serde_path_to_error::deserialize::<_, Config>(root) {
            Ok(config) => return config,
            Err(error) => error,
        };
        let path = error.path().to_string();
        // An item of a list, `kinds[0]`, goes with its list.
        let path = path.split('[').next().unwrap_or_default();
        let origin = given
            .get(path)
            .map_or_else(String::new, |origin| format!(" ({origin})"));
        problems.push(format!("`{path}`{origin}: {}", error.inner()));
        let path: Vec<&str> = path.split('.').collect();
        broken.add(&path);
        if !tree::remove(tree, &path) {
            // Nothing more can be told apart; what was found so far is enough to go on with.
            return Config::default();
        }
    }
}
