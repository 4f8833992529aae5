//! Configurations that nobody would write: whatever they say, the answer is a configuration or words, never a
//! panic and never a secret. Each run of a test is of one seed, which its failure names.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use outboxd::config::{Config, Loaded, Place, known_keys};

/// Stands in every value of a key that may hold a secret, and nowhere else.
const SECRET: &str = "s3cr3t";

/// Small and well known: xorshift64*.
struct Dice(u64);

impl Dice {
    fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 33) as usize % end
    }

    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

fn may_hold_a_secret(key: &str) -> bool {
    ["url", "password", "token"].contains(&key.rsplit('.').next().unwrap())
}

/// A value for a key, as TOML writes it; sometimes of the right kind.
fn value(dice: &mut Dice, key: &str) -> String {
    let secret = may_hold_a_secret(key);
    let words = [
        "",
        "nats",
        "file",
        "stdout",
        "15s",
        "1h 3m",
        "32MiB",
        "off",
        "hold",
        "true",
        "*",
        "a.*",
        "a*b",
        "events",
        "events,log",
        "127.0.0.1:0",
        "::1",
        "verify-full",
        "disable",
        "99999999999999999999",
        "-1",
        "\\u0000",
        "ä\\u2028\\U0001F600",
        "{kind}.{",
        "events.{kind}",
        "/none",
        "info,sqlx=debug",
        "=",
    ];
    let urls = [
        "postgres://u:%@h/d",
        "postgres://u:%@h:port/d",
        "postgres://u@[::1/d?password=%",
        "sqlite://%",
        "postgres://u@h/d?%",
        "nats://u:%@h:4222",
        "nats://%@h",
        "tls://h:99999/%",
        "%",
        "nats://h,%",
        "postgres://u@h/d?sslmode=%",
        "mysql://%",
        "nats://u:%25zz%@h",
        "postgres://u:%/x@h/d",
    ];
    let text = match secret {
        true => dice.pick(&urls).replace('%', SECRET),
        false => (*dice.pick(&words)).to_owned(),
    };
    let bare = |dice: &mut Dice| {
        (*dice.pick(&["7", "-3", "2.5", "true", "inf", "0x7fffffffffffffff"])).to_owned()
    };
    match dice.below(if secret { 4 } else { 12 }) {
        0 => format!("[\"{text}\", \"{text}\"]"),
        1 if dice.once_in(2) => format!("{{ x = \"{text}\" }}"),
        2 if !secret => "1979-05-27T07:32:00Z".to_owned(),
        3 | 4 if !secret => bare(dice),
        _ => format!("\"{text}\""),
    }
}

/// A key: mostly one that there is, sometimes misspelt.
fn key(dice: &mut Dice, keys: &[String]) -> String {
    let mut key = dice.pick(keys).clone();
    while key.contains('*') {
        let name = *dice.pick(&["orders", "events", "log", "all", "x"]);
        key = key.replacen('*', name, 1);
    }
    if dice.once_in(12) {
        let more = *dice.pick(&["s", ".x", "_file", ".retry.base"]);
        key.push_str(more);
    }
    key
}

fn toml(dice: &mut Dice, keys: &[String]) -> String {
    let mut text = String::new();
    for _ in 0..dice.below(30) {
        let key = key(dice, keys);
        let value = value(dice, &key);
        text.push_str(&format!("{key} = {value}\n"));
    }
    text
}

fn environment(dice: &mut Dice, keys: &[String]) -> Vec<(OsString, OsString)> {
    let count = dice.below(6);
    let variable = |_| {
        let key = key(dice, keys);
        let value = value(dice, &key);
        let glue = *dice.pick(&["__", "__", "__", "_", "____"]);
        let name = format!("OUTBOXD{glue}{}", key.to_uppercase().replace('.', glue));
        (
            OsString::from(name),
            OsString::from(value.trim_matches('"')),
        )
    };
    (0..count).map(variable).collect()
}

/// Loads, and looks at what is said.
fn load(seed: u64, text: &[u8], env: Vec<(OsString, OsString)>) -> Result<Config, Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("outboxd.toml");
    std::fs::write(&file, text).unwrap();
    let place = Place {
        file: Some(file),
        env,
    };
    let shown = || String::from_utf8_lossy(text).into_owned();
    let result = catch_unwind(AssertUnwindSafe(|| Loaded::from(&place)));
    let result = result.unwrap_or_else(|_| panic!("seed {seed} panics:\n{}", shown()));
    let said = match &result {
        Ok(loaded) => format!(
            "{loaded:?} {}",
            serde_json::to_string(&loaded.config).unwrap()
        ),
        Err(error) => {
            assert!(!error.problems.is_empty(), "seed {seed}");
            for problem in &error.problems {
                assert!(!problem.contains('\n'), "seed {seed}: {problem:?}");
            }
            format!("{error} {error:?}")
        }
    };
    assert!(
        !said.contains(SECRET),
        "seed {seed} shows a secret: {said}\n{}",
        shown()
    );
    result
        .map(|loaded| loaded.config)
        .map_err(|error| error.problems)
}

#[test]
fn random_keys_and_values_end_in_a_configuration_or_in_words() {
    let (loaded, refused) = random_keys_and_values(0..3_000);
    assert!(
        loaded > 10 && refused > 1_000,
        "{loaded} loaded, {refused} refused"
    );
}

#[test]
#[ignore = "a campaign"]
fn many_more_of_both_end_in_a_configuration_or_in_words() {
    random_keys_and_values(10_000..50_000);
    bytes_that_went_wrong(10_000..50_000);
}

fn random_keys_and_values(seeds: std::ops::Range<u64>) -> (u64, u64) {
    let keys = known_keys();
    let (mut loaded, mut refused) = (0, 0);
    for seed in seeds {
        let mut dice = Dice::of(seed);
        let text = toml(&mut dice, &keys);
        let env = environment(&mut dice, &keys);
        match load(seed, text.as_bytes(), env) {
            Ok(_) => loaded += 1,
            Err(_) => refused += 1,
        }
    }
    (loaded, refused)
}

/// A configuration that loads.
const SOUND: &str = "[databases.orders]\nurl = \"postgres://u:s3cr3t@db/app\"\nmax_connections = 4\n\
    [sinks.events]\ntype = \"nats\"\nurl = \"nats://u:s3cr3t@broker:4222\"\nstream = \"EVENTS\"\n\
    [sinks.log]\ntype = \"file\"\npath = \"x\"\n[routes.all]\nkinds = [\"*\"]\nsinks = [\"events\", \"log\"]\n";

#[test]
fn bytes_that_went_wrong_end_in_a_configuration_or_in_words() {
    assert!(load(0, SOUND.as_bytes(), Vec::new()).is_ok());
    bytes_that_went_wrong(0..3_000);
}

fn bytes_that_went_wrong(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut dice = Dice::of(seed);
        let mut text = SOUND.as_bytes().to_vec();
        for _ in 0..=dice.below(3) {
            let at = dice.below(text.len());
            // The secrets stay whole, so that they can be recognised.
            if SOUND
                .as_bytes()
                .windows(6)
                .enumerate()
                .any(|(start, part)| {
                    part == SECRET.as_bytes()
                        && (start.saturating_sub(20)..start + 26).contains(&at)
                })
            {
                continue;
            }
            match dice.below(3) {
                0 => text[at] = dice.next() as u8,
                1 => {
                    text.remove(at);
                }
                _ => text.insert(at, *dice.pick(b"\"'=[]{}#.,\\\n\0 \xff-_19a")),
            }
        }
        let _ = load(seed, &text, Vec::new());
    }
}

/// Mistakes that have nothing to do with one another: line, and what must be said of it.
const MISTAKES: &[(&str, &str)] = &[
    ("[retry]\nbase = \"1\"", "`retry.base`"),
    ("[lease]\nshards = 0", "`lease.shards`"),
    ("[log]\nlevel = \"loud\"", "`log.level`"),
    ("[http]\nlisten = \"x\"", "`http.listen`"),
    ("[shutdown]\ngrace = 5", "`shutdown.grace`"),
    ("[retention]\npublish = \"7d\"", "`retention.publish`"),
    (
        "[databases.two]\nurl = \"mysql://s3cr3t\"",
        "invalid url for database two",
    ),
    ("[databases.three]\nport = 1", "`databases.three`"),
    ("[sinks.four]\ntype = \"smtp\"", "`sinks.four.type`"),
    ("[sinks.five]\ntype = \"file\"", "`sinks.five`"),
    (
        "[routes.six]\nkinds = [\"a*b\"]\nsinks = [\"log\"]",
        "`routes.six.kinds`",
    ),
    (
        "[routes.seven]\nkinds = [\"a\"]\nsinks = [\"nobody\"]",
        "there is no sink `nobody`",
    ),
];

#[test]
fn any_number_of_mistakes_is_told_in_full() {
    for seed in 0..300 {
        let mut dice = Dice::of(seed);
        let mut text = SOUND.to_owned();
        let mut expected = Vec::new();
        for (lines, words) in MISTAKES {
            if dice.once_in(2) {
                text.push_str(&format!("{lines}\n"));
                expected.push(*words);
            }
        }
        let problems = match load(seed, text.as_bytes(), Vec::new()) {
            Ok(_) => Vec::new(),
            Err(problems) => problems,
        };
        for words in &expected {
            let told = problems.iter().any(|problem| problem.contains(words));
            assert!(told, "seed {seed}: {words} is not told in {problems:#?}");
        }
        assert_eq!(problems.len(), expected.len(), "seed {seed}: {problems:#?}");
    }
}

#[test]
fn depth_and_length_have_bounds() {
    let nested = format!("x = {}1{}", "[".repeat(50_000), "]".repeat(50_000));
    assert!(load(1, nested.as_bytes(), Vec::new()).is_err());
    let dotted = format!("{} = 1", vec!["a"; 100_000].join("."));
    assert!(load(2, dotted.as_bytes(), Vec::new()).is_err());
    let long = vec![b'#'; 2 << 20];
    assert!(load(3, &long, Vec::new()).is_err());
    let deep = format!("OUTBOXD__{}", vec!["A"; 10_000].join("__"));
    assert!(load(4, b"", vec![(deep.into(), "1".into())]).is_err());
    assert!(load(5, b"\xff\xfe", Vec::new()).is_err());
    assert!(load(6, "\u{feff}[retry]\nbase = \"1s\"\n".as_bytes(), Vec::new()).is_ok());
}
