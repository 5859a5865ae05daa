//! Host files: a host or node set per line, `#` comments, `%label` sections (mpssh), `host[:port] user` (pssh).

use super::groups::without_comment;
use super::nodeset::{Groups, Inserted, NodeSet, TooMany};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostFile {
    /// Hosts, each once, in the order of the file.
    pub hosts: NodeSet,
    /// Section labels, in the order of the file.
    pub labels: Vec<String>,
    /// Remarks for the operator that are no errors: hosts that are named twice, lines in the format of pssh.
    pub notes: Vec<String>,
}

/// Line of a host file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}:{line}: {what}")]
pub struct LineFault {
    pub place: String,
    /// Line number, from 1.
    pub line: usize,
    /// Description of the fault, and advice.
    pub what: String,
}

/// Parses the file `place` with the content `content`. With `label`, only the hosts of the sections `%label` are taken.
///
/// # Errors
/// Every wrong line; or the label does not exist, or the file is not UTF-8 text.
pub fn read(
    place: &str,
    content: &[u8],
    label: Option<&str>,
    groups: &mut dyn Groups,
) -> Result<HostFile, Vec<LineFault>> {
    let fault = |line: usize, what: String| LineFault { place: place.to_owned(), line, what };
    if content.starts_with(&[0xff, 0xfe]) || content.starts_with(&[0xfe, 0xff]) {
        return Err(vec![fault(1, "the file is in UTF-16; save it as UTF-8".to_owned())]);
    }
    let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
    let mut file = HostFile::default();
    let mut faults = Vec::new();
    let mut tally = Tally::default();
    let mut section: Option<String> = None;
    for (index, bytes) in content.split(|&byte| byte == b'\n').enumerate() {
        let number = index + 1;
        let Ok(line) = std::str::from_utf8(bytes) else {
            faults.push(fault(number, "this line is not UTF-8; write the name in ASCII or UTF-8".to_owned()));
            continue;
        };
        let line = without_comment(line).trim();
        if line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix('%') {
            let name = name.trim();
            if name.is_empty() || name.contains(char::is_whitespace) {
                faults.push(fault(number, "a section is one word; write %LABEL".to_owned()));
                continue;
            }
            if !file.labels.iter().any(|known| known == name) {
                file.labels.push(name.to_owned());
            }
            section = Some(name.to_owned());
            continue;
        }
        let taken = label.is_none_or(|label| section.as_deref() == Some(label));
        let added = read_line(line, groups).and_then(|(set, form)| {
            if taken {
                if form == Form::Pssh {
                    tally.pssh.push(number);
                }
                tally.add(&mut file.hosts, &set).map_err(|many| many.to_string())?;
            }
            Ok(())
        });
        if let Err(what) = added {
            faults.push(fault(number, what));
        }
    }
    if let Some(label) = label.filter(|label| !file.labels.iter().any(|known| known == label)) {
        let there = if file.labels.is_empty() {
            "it has no sections".to_owned()
        } else {
            format!("it has {}", file.labels.join(", "))
        };
        faults.push(fault(1, format!("the file has no section %{label}; {there}")));
    }
    file.notes = tally.notes();
    if faults.is_empty() { Ok(file) } else { Err(faults) }
}

#[derive(PartialEq, Eq)]
enum Form {
    Set,
    Pssh,
}

fn read_line(line: &str, groups: &mut dyn Groups) -> Result<(NodeSet, Form), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_operator = |sign: char| ",!&^".contains(sign);
    let one_set = words.len() == 1
        || line.contains('[')
        || words.iter().any(|word| word.starts_with(is_operator) || word.ends_with(is_operator));
    let (text, form) = match words.as_slice() {
        [host, user] if !one_set => {
            if !user.chars().all(|sign| sign.is_alphanumeric() || "-_.$".contains(sign)) || host.contains('@')
            {
                return Err(format!(
                    "\"{}\" is more than one host; write one host or set per line",
                    line.escape_debug()
                ));
            }
            (format!("{user}@{host}"), Form::Pssh)
        }
        _ if !one_set => {
            return Err(format!(
                "\"{}\" is more than one host; write one host or set per line",
                line.escape_debug()
            ));
        }
        _ => (line.to_owned(), Form::Set),
    };
    NodeSet::parse(&text, groups).map(|set| (set, form)).map_err(|fault| fault.to_string())
}

#[derive(Default)]
struct Tally {
    /// Number of repetitions of each host that is named more than once.
    again: BTreeMap<String, usize>,
    /// Line numbers of lines in the format of pssh.
    pssh: Vec<usize>,
}

impl Tally {
    fn add(&mut self, hosts: &mut NodeSet, set: &NodeSet) -> Result<(), TooMany> {
        for name in set.names() {
            if hosts.insert(&name)? == Inserted::Again {
                *self.again.entry(name.to_string()).or_default() += 1;
            }
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.again.is_empty() {
            let lines: usize = self.again.values().sum();
            let names: Vec<&str> = self.again.keys().map(String::as_str).take(5).collect();
            let more = if self.again.len() > names.len() { ", ..." } else { "" };
            let count = self.again.len();
            notes.push(format!(
                "{} more than once ({}{more}): each is taken once, {lines} left out",
                if count == 1 { "1 host is named".to_owned() } else { format!("{count} hosts are named") },
                names.join(", "),
            ));
        }
        if let Some(first) = self.pssh.first() {
            let rest = match self.pssh.len() {
                1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            notes.push(format!(
                "line {first}{rest}: two words are read as HOST USER, as pssh does; write USER@HOST"
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::nodeset::NoGroups;

    fn hosts(content: &str, label: Option<&str>) -> (String, Vec<String>) {
        let file =
            read("h", content.as_bytes(), label, &mut NoGroups).unwrap_or_else(|faults| panic!("{faults:?}"));
        (file.hosts.names().join(" "), file.notes)
    }

    fn faults(content: &[u8], label: Option<&str>) -> Vec<String> {
        read("h", content, label, &mut NoGroups).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn comments_blanks_line_ends_and_marks_are_no_hosts() {
        let (names, notes) = hosts(
            "\u{feff}web2\r\n\r\n# c\n  web1 # the old one\n\tme@web3:2222\nn[1-2]\n[2001:db8::1]:22",
            None,
        );
        assert_eq!(names, "web2 web1 me@web3:2222 n1 n2 [2001:db8::1]:22");
        assert!(notes.is_empty(), "{notes:?}");
    }

    #[test]
    fn hosts_that_are_named_twice_are_taken_once_and_told() {
        let (names, notes) = hosts("b\na\nb\nb\nn[1-3]\nn2", None);
        assert_eq!(names, "b a n1 n2 n3");
        assert_eq!(notes, ["2 hosts are named more than once (b, n2): each is taken once, 3 left out"]);
    }

    #[test]
    fn labels_choose_sections() {
        let content = "top\n%web\nw1\nw2\n%db\nd1\n%web\nw3\n";
        assert_eq!(hosts(content, None).0, "top w1 w2 d1 w3");
        assert_eq!(hosts(content, Some("web")).0, "w1 w2 w3");
        assert_eq!(
            faults(content.as_bytes(), Some("x")),
            ["h:1: the file has no section %x; it has web, db"]
        );
    }

    #[test]
    fn two_words_are_host_and_user_of_pssh() {
        let (names, notes) = hosts("web1:2222 root\nweb2 admin\na[1-3] ! a2", None);
        assert_eq!(names, "root@web1:2222 admin@web2 a1 a3");
        assert_eq!(
            notes,
            ["line 1 and 1 more: two words are read as HOST USER, as pssh does; write USER@HOST"]
        );
    }

    #[test]
    fn every_wrong_line_is_told() {
        let said = faults(b"ok\na b c\nn[1-\n\xff\nme@web1 root\n% \n-oProxyCommand=x", None);
        assert_eq!(said.len(), 6, "{said:?}");
        assert!(said[0].starts_with("h:2: \"a b c\" is more than one host"), "{said:?}");
        assert!(said[1].contains("h:3: node set \"n[1-\", column 2"), "{said:?}");
        assert!(said[2].starts_with("h:4: this line is not UTF-8"), "{said:?}");
        assert!(said[3].starts_with("h:5: \"me@web1 root\" is more than one host"), "{said:?}");
        assert!(said[5].contains("begins with \"-\""), "{said:?}");
        assert!(faults(b"\xff\xfew\0", None)[0].contains("UTF-16"));
    }
}
