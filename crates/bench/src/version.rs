//! Versions of installed programs.

use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the first line of a program's version output; `None` if the program is missing.
pub fn of(program: &Path, arguments: &[&str]) -> Option<String> {
    let text = output(program, arguments)?;
    let line = text.lines().find(|line| line.chars().any(|c| c.is_ascii_digit()))?;
    Some(line.trim().to_owned())
}

/// Returns all that a program prints; `None` if it does not start.
pub(crate) fn output(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// Finds the TLS library in the output of `haproxy -vv` or `nginx -V`: the one it runs with, or the one it was built with.
pub(crate) fn tls_library(text: &str) -> Option<String> {
    let value = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.contains("OpenSSL version") || key.contains("SSL library version"))
            .then(|| value.trim().to_owned())
    };
    let running = text.lines().filter(|line| line.starts_with("Running on")).find_map(value);
    let built = || text.lines().filter(|line| line.starts_with("Built with")).find_map(value);
    let nginx = || {
        let library = text.lines().find_map(|line| line.strip_prefix("built with "))?;
        let running = library.split_once("(running with ").and_then(|(_, rest)| rest.split_once(')'));
        Some(running.map_or(library, |(version, _)| version).trim().to_owned())
    };
    running.or_else(built).or_else(nginx)
}

/// Returns the version of an installed Debian package, for programs that do not print theirs.
pub fn of_package(package: &str) -> Option<String> {
    let query =
        Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).stderr(Stdio::null()).output();
    let output = query.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()).filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_library_is_read_from_what_haproxy_and_nginx_print() {
        for (text, library) in [
            (
                "Running on: Linux 6.1\nBuilt with OpenSSL version : OpenSSL 3.0.22\nRunning on OpenSSL version : OpenSSL 3.0.19\n",
                Some("OpenSSL 3.0.19"),
            ),
            ("Built with OpenSSL version : AWS-LC 1.66.0\n", Some("AWS-LC 1.66.0")),
            (
                "nginx version: nginx/1.22\nbuilt with OpenSSL 3.0.22 (running with OpenSSL 3.0.19)\n",
                Some("OpenSSL 3.0.19"),
            ),
            ("built with BoringSSL\nTLS SNI support enabled\n", Some("BoringSSL")),
            ("built by gcc 12\nTLS: none\n", None),
        ] {
            assert_eq!(tls_library(text).as_deref(), library, "{text}");
        }
    }
}
