//! The file that a change belongs to, where the configuration has several.

use toml_edit::{DocumentMut, Item};

use super::error::EditError;
use super::path::Path;
use crate::files::File;
use crate::include;
use crate::quote::quote;

/// Returns the index of the file that has the key, or that is to have it: the one that has its section already, else the
/// first. A new name, such as `pool.NAME`, goes into the first file.
pub(super) fn file_of(files: &[File<'_>], path: &Path) -> Result<usize, EditError> {
    let mut steps = path.segments().iter().map(|segment| segment.text.as_str());
    let section = steps.next().unwrap_or_default();
    if section == include::KEY {
        return Err(EditError::new("`include` is not changed live, because it decides which files are read")
            .hint("change it in the file, then `penstock ctl reload`"));
    }
    if files.len() == 1 {
        return Ok(0);
    }
    let key = steps.next();
    let mut with_section = Vec::new();
    for (at, file) in files.iter().enumerate() {
        // A file that is not TOML is refused where it is loaded.
        let Ok(document) = file.text.parse::<DocumentMut>() else { continue };
        let Some(item) = document.get(section) else { continue };
        let has = |key: &str| item.as_table_like().is_some_and(|table| table.contains_key(key));
        if key.is_some_and(has) {
            return Ok(at);
        }
        // `[pool.NAME]` makes no section `pool` that other names belong to.
        let is_named =
            item.as_table_like().is_some_and(|table| table.iter().all(|(_, inner)| is_table(inner)));
        if key.is_none() || !is_named {
            with_section.push(at);
        }
    }
    match (key, &with_section[..]) {
        (None, [_, _, ..]) => {
            let names = with_section.iter().map(|at| files[*at].path.unwrap_or("the first file"));
            let names: Vec<_> = names.take(5).collect();
            Err(EditError::new(format!("{} is in several files: {}", quote(section), names.join(", ")))
                .hint("change its keys one by one"))
        }
        (_, found) => Ok(found.first().copied().unwrap_or(0)),
    }
}

fn is_table(item: &Item) -> bool {
    item.is_table_like()
}
