//! What a [`super::script`] has told of a host.

/// Most bytes of a file that a script sends.
pub const LONGEST_FILE: usize = 1024 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// User id that the script had.
    pub uid: Option<u32>,
    /// Account of the log-in.
    pub login: String,
    pub settings: Vec<Setting>,
    /// Why settings of sshd are not known: the account, empty for all, and the reason.
    pub unknown_settings: Vec<(String, String)>,
    pub files: Vec<KeyFile>,
    /// What could not be seen: account, reason, file.
    pub unseen: Vec<(String, String, String)>,
    pub changes: Vec<Change>,
    /// Whether the script came to its end.
    pub is_whole: bool,
}

/// A setting of sshd as `sshd -T` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Empty: for accounts without settings of their own.
    pub account: String,
    pub name: String,
    pub value: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    /// `*`: for all accounts.
    pub account: String,
    pub path: String,
    pub lines: Vec<String>,
    pub extent: Extent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Whole,
    /// The file has more than [`LONGEST_FILE`] bytes.
    Cut,
}

/// What happened to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub account: String,
    pub path: String,
    pub result: Changed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// It was replaced: lines added and removed.
    Replaced { added: usize, removed: usize },
    /// It was as it should be.
    Same,
    /// It was not replaced, for this reason.
    Failed(String),
}

impl Report {
    /// Parses the output of a script that got this nonce. What is not understood is left out.
    #[must_use]
    pub fn parse(output: &[u8], nonce: &str) -> Self {
        let mut report = Self::default();
        let mut size = 0;
        for line in output.split(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(line);
            if let Some(content) = line.strip_prefix(':') {
                if let Some(file) = report.files.last_mut() {
                    size += content.len() + 1;
                    file.lines.push(content.to_owned());
                    if size > LONGEST_FILE {
                        file.extent = Extent::Cut;
                    }
                }
                continue;
            }
            let Some(rest) = line.strip_prefix(nonce).and_then(|rest| rest.strip_prefix('\t')) else {
                continue;
            };
            let fields: Vec<&str> = rest.splitn(4, '\t').collect();
            size = 0;
            report.take(&fields);
        }
        report
    }

    fn take(&mut self, fields: &[&str]) {
        let own = |text: &str| text.to_owned();
        match fields {
            ["host", uid, login] => {
                self.uid = uid.parse().ok();
                self.login = own(login);
            }
            ["sshd", account, name, value] => {
                self.settings.push(Setting { account: own(account), name: own(name), value: own(value) });
            }
            ["nosshd", account, reason] => self.unknown_settings.push((own(account), own(reason))),
            ["file", account, path] => {
                let (account, path) = (own(account), own(path));
                self.files.push(KeyFile { account, path, lines: Vec::new(), extent: Extent::Whole });
            }
            ["unseen", account, reason, path] => self.unseen.push((own(account), own(reason), own(path))),
            ["changed", account, counts, path] => {
                let mut counts = counts.split(' ').map(|count| count.parse().unwrap_or(0));
                let (added, removed) = (counts.next().unwrap_or(0), counts.next().unwrap_or(0));
                self.changed(account, path, Changed::Replaced { added, removed });
            }
            ["same", account, _, path] => self.changed(account, path, Changed::Same),
            ["failed", account, reason, path] => self.changed(account, path, Changed::Failed(own(reason))),
            ["end"] => self.is_whole = true,
            _ => {}
        }
    }

    fn changed(&mut self, account: &str, path: &str, result: Changed) {
        self.changes.push(Change { account: account.to_owned(), path: path.to_owned(), result });
    }

    /// A setting of sshd for log-ins to an account.
    #[must_use]
    pub fn setting(&self, account: &str, name: &str) -> Option<&str> {
        let of = |account: &str| self.settings.iter().find(|one| one.account == account && one.name == name);
        of(account).or_else(|| of("")).map(|one| one.value.as_str())
    }
}
