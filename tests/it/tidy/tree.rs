//! The source tree as the tidy checks see it: files, and Rust code without comments, string contents
//! and unit tests.

use std::fs;
use std::path::{Path, PathBuf};

/// The repository; from the environment at run time, so that one build can look at another checkout.
pub fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}

/// One text file.
#[derive(Debug)]
pub struct File {
    /// Relative to the repository, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Files under `directory` whose names end in `ending`, sorted; none if there is no such directory.
pub fn files(directory: &str, ending: &str) -> Vec<File> {
    let root = root();
    let mut found = Vec::new();
    collect(&root, &root.join(directory), ending, &mut found);
    found.sort_by(|one, two| one.path.cmp(&two.path));
    found
}

fn collect(root: &Path, directory: &Path, ending: &str, found: &mut Vec<File>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let built = ["target", ".git", ".tools", "node_modules"].contains(&name.as_str());
        if path.is_dir() && !built {
            collect(root, &path, ending, found);
        } else if path.is_file()
            && name.ends_with(ending)
            && let Ok(text) = fs::read_to_string(&path)
        {
            let relative = path.strip_prefix(root).unwrap_or(&path);
            found.push(File {
                path: relative.to_string_lossy().replace('\\', "/"),
                text,
            });
        }
    }
}

impl File {
    /// Lines of code with their numbers: without comments and string contents, and without what stands
    /// behind `#[cfg(test)]` at the end of a file.
    pub fn code(&self) -> Vec<(usize, String)> {
        let mut code = Vec::new();
        for (index, line) in blank(&self.text, Keep::Code).lines().enumerate() {
            if line.trim() == "#[cfg(test)]" {
                break;
            }
            code.push((index + 1, line.to_owned()));
        }
        code
    }

    /// Lines of code with string contents, otherwise like [`Self::code`].
    pub fn code_and_strings(&self) -> Vec<(usize, String)> {
        let last = self.code().len();
        let text = blank(&self.text, Keep::CodeAndStrings);
        text.lines()
            .take(last)
            .map(str::to_owned)
            .enumerate()
            .map(|(i, l)| (i + 1, l))
            .collect()
    }
}

/// Whether `word` stands in `line` as a word of its own: `rand` in `use rand::Rng`, not in `operand`.
pub fn names(line: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let starts = word.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let ends = word.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        !(starts && part(before) || ends && part(after))
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Code,
    CodeAndStrings,
}

/// Replaces comments, and string contents if wanted, by spaces; line ends stay where they are.
fn blank(text: &str, keep: Keep) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    let hide = |c: char| if c == '\n' { '\n' } else { ' ' };
    while at < chars.len() {
        let rest = &chars[at..];
        let (length, visible) = if rest.starts_with(&['/', '/']) {
            (
                rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
                false,
            )
        } else if rest.starts_with(&['/', '*']) {
            (block_comment(rest), false)
        } else if let Some(length) = string(rest, at.checked_sub(1).map(|before| chars[before])) {
            (length, keep == Keep::CodeAndStrings)
        } else if let Some(length) = char_literal(rest) {
            (length, false)
        } else {
            (1, true)
        };
        out.extend(
            rest[..length]
                .iter()
                .map(|c| if visible { *c } else { hide(*c) }),
        );
        at += length;
    }
    out
}

fn block_comment(text: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at + 1 < text.len() {
        match (text[at], text[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Length of the string literal that starts here: `"…"`, `r"…"`, `r#"…"#`.
fn string(text: &[char], before: Option<char>) -> Option<usize> {
    if text[0] == '"' {
        let mut at = 1;
        while at < text.len() && text[at] != '"' {
            at += if text[at] == '\\' { 2 } else { 1 };
        }
        return Some((at + 1).min(text.len()));
    }
    if text[0] != 'r' || before.is_some_and(|c| c.is_alphanumeric() && c != 'b' || c == '_') {
        return None;
    }
    let hashes = text[1..].iter().take_while(|c| **c == '#').count();
    if text.get(1 + hashes) != Some(&'"') {
        return None;
    }
    let mut end = vec!['"'];
    end.resize(1 + hashes, '#');
    let start = 2 + hashes;
    let found = text[start..]
        .windows(end.len())
        .position(|window| window == end);
    Some(found.map_or(text.len(), |at| start + at + end.len()))
}

/// Length of the character literal that starts here; a lifetime is none.
fn char_literal(text: &[char]) -> Option<usize> {
    match text {
        ['\'', '\\', _, rest @ ..] => rest.iter().position(|c| *c == '\'').map(|at| at + 4),
        ['\'', _, '\'', ..] => Some(3),
        _ => None,
    }
}

#[test]
fn code_is_what_is_left_without_comments_strings_and_tests() {
    let text = "use a; // sqlx\n/* sqlx\n*/ let x = \"sqlx \\\" sqlx\"; let y = r#\"sq\"lx\"#;\n\
                fn f<'a>(c: char) -> bool { c == '\"' || c == '\\'' } let z = b;\n\
                #[cfg(test)]\nmod tests { use sqlx; }\n";
    let file = File {
        path: String::new(),
        text: text.to_owned(),
    };
    let code: Vec<String> = file.code().into_iter().map(|(_, line)| line).collect();
    assert_eq!(code.len(), 4);
    assert!(!code.concat().contains("sqlx") && code[2].contains("let y ="));
    assert!(code[3].contains("fn f<'a>(c: char)") && code[3].contains("let z = b;"));
    assert!(file.code_and_strings()[2].1.contains("sqlx"));
    assert!(names("use rand::Rng", "rand") && !names("an operand", "rand"));
    assert!(names("x.unwrap()", ".unwrap()") && !names("x.unwrap_or(1)", ".unwrap()"));
}
