//! Which roles commands need that show more with some arguments than with others, and what a client is told that has too low
//! a role.

use access::policy::Role;
use state::State;
use state::events::Level;

use crate::control::client::PeerCredentials;

/// With a number it shows lines of the configuration, which may have secrets.
pub(super) fn history(arguments: &[&str]) -> Role {
    if arguments.is_empty() { Role::View } else { Role::Admin }
}

/// A trace shows what clients send.
pub(super) fn dsr(arguments: &[&str]) -> Role {
    if arguments.first() == Some(&"trace") { Role::Admin } else { Role::View }
}

/// Whether a command changes something, or shows what clients send: for those a one-time password may be asked for. Of the others
/// that need more than the lowest role, these only read.
pub(super) fn is_change(name: &str, arguments: &[&str], needed: Role) -> bool {
    let reads = match name {
        "show" | "diff" | "history" => true,
        "log-level" | "save" => arguments.is_empty(),
        _ => false,
    };
    needed > Role::View && !reads
}

/// Says why the client may not, and records that it has tried.
pub(super) fn refuse(state: &State, who: &PeerCredentials, command: &str, needed: Role) -> String {
    let role = who.role;
    // Without more they are for readers too.
    let command = match command {
        "history" => "history N",
        "dsr" => "dsr trace",
        other => other,
    };
    if who.login.is_some() {
        let message =
            format!("{who}: `{command}` refused: it needs the role {needed}, the client has {role}");
        state.events.record(Level::Warning, "access", message);
    }
    match (&who.login, role) {
        (None, Role::View) => {
            format!("{who} may only read: `{command}` is for those whom control.operators names")
        }
        _ => format!("{who} has the role {role}: `{command}` needs {needed}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::COMMANDS;
    use super::*;

    #[test]
    fn readers_see_no_text_of_the_configuration_and_operators_change_none() {
        let role = |name: &str, arguments: &[&str]| {
            let command = COMMANDS.iter().find(|command| command.name == name).unwrap();
            (command.role)(arguments)
        };
        let view = [
            "status", "backends", "certs", "clients", "sessions", "health", "events", "why", "help",
            "history", "dsr",
        ];
        for name in view.into_iter().filter(|name| !["history", "dsr"].contains(name)) {
            assert_eq!((role(name, &[]), role(name, &["a", "b"])), (Role::View, Role::View), "{name}");
        }
        assert_eq!((role("history", &[]), role("history", &["3"])), (Role::View, Role::Admin));
        assert_eq!((role("dsr", &["status"]), role("dsr", &["trace"])), (Role::View, Role::Admin));
        let operate = ["drain", "ready", "weight", "kill", "log-level"];
        for name in operate {
            assert_eq!((role(name, &[]), role(name, &["a", "b"])), (Role::Operate, Role::Operate), "{name}");
        }
        let admin = [
            "show", "set", "add", "remove", "begin", "diff", "commit", "confirm", "abort", "undo", "save",
            "capture", "reload", "stop", "upgrade",
        ];
        for name in admin {
            assert_eq!((role(name, &[]), role(name, &["a", "b"])), (Role::Admin, Role::Admin), "{name}");
        }
        let changes = |name: &str, arguments: &[&str]| is_change(name, arguments, role(name, arguments));
        for name in view.iter().chain(&["show", "diff", "log-level", "save"]) {
            assert!(!changes(name, &[]), "{name} reads");
        }
        assert!(!changes("history", &["3"]) && !changes("dsr", &["status"]) && changes("dsr", &["trace"]));
        for name in ["drain", "kill", "set", "commit", "undo", "capture", "reload", "stop"] {
            assert!(changes(name, &["a"]), "{name}");
        }
        assert!(changes("log-level", &["debug"]) && changes("save", &["done"]));
        let listed = view.len() + operate.len() + admin.len();
        assert_eq!(COMMANDS.len(), listed, "each command is in one of the lists");
    }
}
