//! The scripts that look at the keys on a host and change them. Everything that is not ours goes into them quoted, in the
//! environment of their programs, and never as text of a program.

use text::shell::quote;

use crate::fleet::script::{Sent, sent};

/// What a script does on each host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    pub work: Work,
    pub scope: Scope,
    pub becomes: Becomes,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Work {
    /// It tells which keys are there.
    #[default]
    Look,
    /// The files have these lines, and no other ones with these tags.
    Deploy { tags: Vec<String>, lines: Vec<String> },
    /// The files do not have keys with these blobs (in base64), and no line with this tag.
    Revoke { tag: String, blobs: Vec<String> },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Scope {
    /// All accounts, if the log-in may see them.
    #[default]
    All,
    /// One account.
    Account(String),
    /// The account of the log-in.
    Own,
}

/// The user who runs the script on the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Becomes {
    /// The user of the log-in.
    #[default]
    Itself,
    /// Root, by `sudo` without a question.
    Root,
}

/// The word behind the key that marks a line of an owner.
#[must_use]
pub fn tag(owner: &str) -> String {
    format!("penstock:{owner}")
}

/// Prepares a script. `nonce` consists of letters and digits that a host cannot guess; lines of the answer begin with it.
#[must_use]
pub fn script(task: &Task, nonce: &str) -> Sent {
    let (mode, work, tags, lines, blobs) = match &task.work {
        Work::Look => ("look", "", String::new(), String::new(), String::new()),
        Work::Deploy { tags, lines } => {
            ("change", "deploy", tags.join("\n"), lines.join("\n"), String::new())
        }
        Work::Revoke { tag, blobs } => ("change", "revoke", tag.clone(), String::new(), blobs.join("\n")),
    };
    let (scope, account) = match &task.scope {
        Scope::All => ("all", ""),
        Scope::Account(account) => ("one", account.as_str()),
        Scope::Own => ("one", ""),
    };
    let settings = [
        ("MARK", nonce),
        ("MODE", mode),
        ("WORK", work),
        ("SCOPE", scope),
        ("ACCOUNT", account),
        ("TAGS", &tags),
        ("LINES", &lines),
        ("BLOBS", &blobs),
        ("AWK", include_str!("script/lines.awk")),
        ("APPLY", include_str!("script/apply.sh")),
    ];
    let mut source = String::from("#!/bin/sh\n");
    for (name, value) in settings {
        source += &format!("P_{name}={}\nexport P_{name}\n", quote(value));
    }
    source += include_str!("script/look.sh");
    let mut sent = sent(source.as_bytes(), "penstock-user", &[], nonce);
    if task.becomes == Becomes::Root
        && let Some(rest) = sent.command.strip_prefix("exec ")
    {
        sent.command = format!("exec sudo -n {rest}");
    }
    sent
}
