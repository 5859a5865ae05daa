//! Commands that people paste into a shell: they work as they stand.

use std::env;
use std::path::Path;

/// How this program is called from a shell: by its name if that finds it, otherwise by its path.
pub fn program() -> String {
    let Ok(path) = env::current_exe() else { return "penstock".to_owned() };
    let found = env::var_os("PATH").is_some_and(|directories| {
        let first = env::split_paths(&directories)
            .map(|directory| directory.join("penstock"))
            .find(|file| file.is_file());
        first.and_then(|file| file.canonicalize().ok()).is_some_and(|file| file == path)
    });
    if found { "penstock".to_owned() } else { quote(&path) }
}

/// A path as a shell takes it.
pub fn quote(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if text.chars().all(plain) { text.into_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_gets_paths_back_as_they_were() {
        assert_eq!(quote(Path::new("/tmp/penstock-demo-1/ca.pem")), "/tmp/penstock-demo-1/ca.pem");
        assert_eq!(quote(Path::new("/tmp/it's $HOME")), r"'/tmp/it'\''s $HOME'");
    }
}
