//! What a translation may know of the machine; it looks at nothing itself.

use std::path::Path;

/// What a translation needs of the machine.
pub struct Outside<'a> {
    /// Text of `/etc/services`, for ports that are given by name.
    pub services: &'a str,
    /// Directory in which relative paths begin.
    pub directory: &'a Path,
    /// Reads a file that a command line or file names; `Err` has the reason.
    pub read: &'a dyn Fn(&Path) -> Result<String, String>,
    /// Whether there is a file.
    pub exists: &'a dyn Fn(&Path) -> bool,
}

impl Outside<'_> {
    /// Port of a service, as getservbyname(3) finds it.
    pub(crate) fn port(&self, name: &str) -> Option<u16> {
        self.services.lines().find_map(|line| {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let own = words.next()?;
            let port = words.next()?.split('/').next()?.parse().ok()?;
            (own == name || words.any(|alias| alias == name)).then_some(port)
        })
    }

    /// Makes a path absolute.
    pub(crate) fn absolute(&self, path: &str) -> String {
        self.directory.join(path).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found_by_name_and_by_alias() {
        let services = "# comment\nsmtp 25/tcp mail # Mail\ndomain\t53/udp\nbroken\n";
        let outside =
            Outside { services, directory: Path::new("/"), read: &|_| Err(String::new()), exists: &|_| true };
        assert_eq!(outside.port("smtp"), Some(25));
        assert_eq!(outside.port("mail"), Some(25));
        assert_eq!(outside.port("domain"), Some(53));
        for unknown in ["broken", "Mail", "", "comment"] {
            assert_eq!(outside.port(unknown), None, "{unknown}");
        }
    }
}
