//! Output of programs that is shown when a test fails.

use std::path::PathBuf;

/// A file that a program writes; its end is printed when the test fails.
pub struct Shown(pub PathBuf);

impl Drop for Shown {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = std::fs::read(&self.0).unwrap_or_default();
            show(&self.0.display().to_string(), &String::from_utf8_lossy(&text));
        }
    }
}

/// Prints the end of a program's output.
pub fn show(title: &str, text: &str) {
    let lines: Vec<_> = text.lines().collect();
    eprintln!("--- {title} ---\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
}
