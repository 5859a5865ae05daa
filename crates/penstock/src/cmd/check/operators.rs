//! `penstock check --privileges` without a file: what the commands of operators keep, what they give up, why and when.
//! `sys::privilege::reduce` does it.

use serde_json::{Value, json};
use sys::privilege::needed;
use text::table::Table;

struct Row {
    commands: &'static str,
    what: String,
    why: &'static str,
    until: &'static str,
}

const ALL: &str = "all";
const LAB: &str = "lab alone";
const START: &str = "the start";
const END: &str = "the end";

pub(super) fn table() -> String {
    let mut table = Table::indented("");
    table.header(["COMMANDS", "WHAT", "WHY", "UNTIL"]);
    for row in rows() {
        table.row([row.commands.to_owned(), row.what, row.why.to_owned(), row.until.to_owned()]);
    }
    table.render()
        + "all: run, put, get, host, ssh, mpssh, tunnel, lab, user (audit, deploy, revoke). lab alone: without --shell and without a command.\n"
}

pub(super) fn json() -> Value {
    let row =
        |row: Row| json!({"commands": row.commands, "what": row.what, "why": row.why, "until": row.until});
    rows().into_iter().map(row).collect()
}

fn rows() -> Vec<Row> {
    let row = |commands, what: &str, why, until| Row { commands, what: what.to_owned(), why, until };
    let mut rows = vec![
        row(ALL, "user and files of the starter", "keys, agents and ssh_config are the starter's", END),
        row(ALL, "core dumps", "not needed: they would hold keys and passwords", START),
    ];
    rows.extend(needed().map(|(name, why)| row(ALL, &format!("{name}, of root"), why, END)));
    rows.extend([
        row(
            ALL,
            "other capabilities, of root",
            "not needed in its own threads; programs that root starts get them",
            START,
        ),
        row(
            "all but lab alone",
            "all capabilities, of root that lacks CAP_SYS_PTRACE",
            "if it gave some up, it could not find the programs that it started",
            END,
        ),
        row(
            "run, put, get, host, ssh, mpssh, lab alone",
            "ambient and inheritable capabilities",
            "not needed",
            START,
        ),
        row(
            "tunnel, lab with a shell or a command",
            "ambient and inheritable capabilities",
            "meant for mount helpers, the job, the shell or the command",
            END,
        ),
        row(LAB, "new privileges", "not needed: it starts no program", START),
        row(
            "all but lab alone",
            "new privileges",
            "ProxyCommand, Match exec, SSH_ASKPASS, a mount helper or a job may be sudo",
            END,
        ),
        row("all but lab alone", "start programs, any file, any system call", "those programs", END),
    ]);
    rows
}
