//! Reading: the file, then environment variables over it, each value with its origin.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use config::{ConfigError as Refusal, File, FileFormat, Map, Source, Value, ValueKind};

use super::{Config, ConfigError, check, keys};

/// Read when no file is named, if it exists in the working directory.
pub const DEFAULT_FILE: &str = "outboxd.toml";

/// What a variable starts with to override a key: `OUTBOXD__RETRY__BASE` is `retry.base`.
pub const ENV_PREFIX: &str = "OUTBOXD__";

/// Names the configuration file; the one variable with our name that is not a key.
const FILE_VARIABLE: &str = "OUTBOXD_CONFIG";

/// Where configuration is read from.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The file; `None` when everything comes from the environment.
    pub file: Option<PathBuf>,
    /// Environment variables; those of other programs are passed over.
    pub env: Vec<(OsString, OsString)>,
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
    /// Which keys were given, and where (a file, a variable). All others have their defaults.
    pub given: BTreeMap<String, String>,
    /// What is allowed but probably not meant, one sentence each.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// Everything that is wrong, at once; syntax errors and unknown keys come before wrong values, since
    /// the latter often follow from the former.
    pub fn from(place: &Place) -> Result<Self, ConfigError> {
        let environment = Environment::of(&place.env)?;
        let tree = merged(place.file.as_deref(), &environment)?;
        let misplaced = keys::misplaced(&tree);
        if !misplaced.is_empty() {
            return Err(ConfigError {
                problems: misplaced,
            });
        }
        let mut given = BTreeMap::new();
        origins(&tree, "", &mut given);
        let config = parse(tree, &given)?;
        let mut warnings = environment.warnings;
        let problems = check::problems(&config, &given);
        if !problems.is_empty() {
            return Err(ConfigError { problems });
        }
        warnings.extend(check::warnings(&config));
        Ok(Self {
            config,
            given,
            warnings,
        })
    }
}

/// Our variables, sorted into keys and remarks.
#[derive(Debug, Clone, Default)]
struct Environment {
    /// Key, value, name of the variable.
    values: Vec<(String, String, String)>,
    warnings: Vec<String>,
}

impl Environment {
    fn of(variables: &[(OsString, OsString)]) -> Result<Self, ConfigError> {
        let mut found = Self::default();
        let mut problems = Vec::new();
        for (name, value) in variables {
            let Some(name) = name.to_str().map(str::to_owned) else {
                continue;
            };
            let upper = name.to_ascii_uppercase();
            if let Some(rest) = upper.strip_prefix(ENV_PREFIX) {
                // An empty variable is how container tools write "not set".
                if value.is_empty() {
                    continue;
                }
                match value.to_str() {
                    Some(value) => {
                        let key = rest.to_ascii_lowercase().replace("__", ".");
                        found.values.push((key, value.to_owned(), name));
                    }
                    None => problems.push(format!("environment variable {name}: not UTF-8")),
                }
            } else if let Some(rest) = upper.strip_prefix("OUTBOXD_") {
                match stray(&name, rest) {
                    Some(Stray::Refused(problem)) => problems.push(problem),
                    Some(Stray::Odd(warning)) => found.warnings.push(warning),
                    None => {}
                }
            }
        }
        found.values.sort();
        if problems.is_empty() {
            Ok(found)
        } else {
            problems.sort();
            Err(ConfigError { problems })
        }
    }
}

enum Stray {
    Refused(String),
    Odd(String),
}

/// Judges a variable with a single underscore behind our name. One that was meant as a key is refused,
/// since running without it would be a silent surprise. Kubernetes sets others by itself for a service
/// of our name.
fn stray(name: &str, rest: &str) -> Option<Stray> {
    let is_kubernetes = rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_");
    if name == FILE_VARIABLE || is_kubernetes {
        return None;
    }
    if let Some(key) = keys::meant_by(rest) {
        let right = key.to_ascii_uppercase().replace('.', "__");
        return Some(Stray::Refused(format!(
            "environment variable {name}: sections are separated by two underscores; did you mean \
             {ENV_PREFIX}{right}?"
        )));
    }
    let section = rest.split('_').find(|word| !word.is_empty())?;
    if keys::is_section(section) {
        return Some(Stray::Refused(format!(
            "environment variable {name}: there is no such key, and sections are separated by two \
             underscores, as in {ENV_PREFIX}RETRY__MAX_ATTEMPTS"
        )));
    }
    Some(Stray::Odd(format!(
        "environment variable {name} has no meaning here; keys start with {ENV_PREFIX}"
    )))
}

impl Source for Environment {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, Refusal> {
        let value = |(key, value, name): &(String, String, String)| {
            let origin = format!("environment variable {name}");
            let value = Value::new(Some(&origin), ValueKind::String(value.clone()));
            (key.clone(), value)
        };
        Ok(self.values.iter().map(value).collect())
    }
}

/// The file with the environment over it.
fn merged(
    file: Option<&Path>,
    environment: &Environment,
) -> Result<Map<String, Value>, ConfigError> {
    let mut builder = config::Config::builder();
    if let Some(path) = file {
        // Read here rather than by the library: it adds extensions to names, and its error for a missing
        // file does not say which one.
        let text = std::fs::read_to_string(path).map_err(|error| {
            ConfigError::one(format!("cannot read {}: {error}", path.display()))
        })?;
        let parsed = config::Config::builder()
            .add_source(File::from_str(&text, FileFormat::Toml))
            .build()
            .map_err(|error| syntax(path, &error))?;
        let mut tree = Source::collect(&parsed).map_err(|error| syntax(path, &error))?;
        let origin = path.display().to_string();
        tree.values_mut().for_each(|value| stamp(value, &origin));
        builder = builder.add_source(Tree(tree));
    }
    // The library reads a key as a path expression (`a[0]`), so keys that are none stop here.
    for (key, _, name) in &environment.values {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b);
        if key
            .split('.')
            .any(|part| part.is_empty() || !part.bytes().all(plain))
        {
            return Err(ConfigError::one(format!(
                "environment variable {name}: there is no such key"
            )));
        }
    }
    let built = builder.add_source(environment.clone()).build();
    built
        .and_then(|config| Source::collect(&config))
        .map_err(|error| ConfigError::one(error.to_string()))
}

/// A tree that was read before.
#[derive(Debug, Clone)]
struct Tree(Map<String, Value>);

impl Source for Tree {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, Refusal> {
        Ok(self.0.clone())
    }
}

/// Writes the file's name on every value of the tree.
fn stamp(value: &mut Value, origin: &str) {
    let kind = std::mem::replace(&mut value.kind, ValueKind::Nil);
    let kind = match kind {
        ValueKind::Table(mut table) => {
            table.values_mut().for_each(|inner| stamp(inner, origin));
            ValueKind::Table(table)
        }
        other => other,
    };
    *value = Value::new(Some(&origin.to_owned()), kind);
}

/// The parser's message shows the line, which may hold a secret: only its place and its words are kept.
fn syntax(path: &Path, error: &Refusal) -> ConfigError {
    let text = match error {
        Refusal::FileParse { cause, .. } => cause.to_string(),
        other => other.to_string(),
    };
    let words: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| {
            let source_line = line.contains(" | ") || line.starts_with('|') || line.ends_with('|');
            !line.is_empty() && !source_line
        })
        .collect();
    ConfigError::one(format!("{}: {}", path.display(), words.join(": ")))
}

/// Every given key with its origin.
fn origins(table: &Map<String, Value>, path: &str, given: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let path = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        match &value.kind {
            ValueKind::Table(inner) => {
                given.insert(path.clone(), value.origin().unwrap_or_default().to_owned());
                origins(inner, &path, given);
            }
            _ => {
                given.insert(path, value.origin().unwrap_or_default().to_owned());
            }
        }
    }
}

fn parse(
    tree: Map<String, Value>,
    given: &BTreeMap<String, String>,
) -> Result<Config, ConfigError> {
    let value = Value::new(None, ValueKind::Table(tree));
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let origin = given
            .get(&path)
            .map_or_else(String::new, |origin| format!(" ({origin})"));
        let words = plain(error.inner());
        ConfigError::one(format!("`{path}`{origin}: {words}"))
    })
}

/// The words of a refusal without the library's own key and origin, which the caller knows better.
fn plain(refusal: &Refusal) -> String {
    match refusal {
        Refusal::At { error, .. } => plain(error),
        Refusal::Message(words) => words.clone(),
        Refusal::Type { expected, .. } => format!("expected {expected}"),
        other => other.to_string(),
    }
}
