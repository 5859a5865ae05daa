//! Commands for users to paste into a shell.

use std::env;

/// Returns how a shell can call this program: by its name if the name in PATH is this program, else by its path.
pub(crate) fn program() -> String {
    let Ok(path) = env::current_exe() else { return "penstock".to_owned() };
    let found = env::var_os("PATH").is_some_and(|directories| {
        let first = env::split_paths(&directories)
            .map(|directory| directory.join("penstock"))
            .find(|file| file.is_file());
        first.and_then(|file| file.canonicalize().ok()).is_some_and(|file| file == path)
    });
    if found { "penstock".to_owned() } else { text::shell::path(&path) }
}
