//! Writes what was measured into the page, between `<!-- GROUP -->` and `<!-- /GROUP -->`, and leaves the rest as it is.

use std::path::{Path, PathBuf};

/// docs/ of the repository.
fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

/// Replaces the text of these groups.
///
/// # Errors
/// The page cannot be read or written, or has no place for a group: in words.
pub fn write(tables: &[(&str, String)], conditions: &str) -> Result<(), String> {
    let path = docs().join("performance.md");
    let mut page = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
    for (group, table) in tables {
        page = replace(&page, group, &format!("{table}\n{conditions}."))
            .ok_or_else(|| format!("{} has no markers for {group}", path.display()))?;
    }
    std::fs::write(path, page).map_err(|error| error.to_string())
}

/// Writes the plot.
///
/// # Errors
/// It cannot be written: in words.
pub fn write_plot(svg: &str) -> Result<(), String> {
    std::fs::write(docs().join("performance.svg"), svg).map_err(|error| error.to_string())
}

fn replace(page: &str, group: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(&format!("<!-- {group} -->"))?;
    let end = format!("<!-- /{group} -->");
    let (_, after) = rest.split_once(&end)?;
    Some(format!(
        "{before}<!-- {group} -->\n{}\n{end}{after}",
        text.trim_end()
    ))
}
