//! `penstock user list`.

use std::path::Path;

use access::policy::Role;
use access::users::{Account, User};
use serde_json::{Value, json};
use text::table::Table;
use text::wrap::wrapped;

use super::file;
use crate::output::{Failure, plain, print, print_json};

/// Columns of the usual terminal.
const WIDTH: usize = 100;

pub(super) fn run(file: &Path, json: bool) -> Result<(), Failure> {
    let (text, users) = file::read(file)?;
    if text.is_none() {
        return Err(Failure::usage(format_args!("there is no file {}", plain(&file.display().to_string()))));
    }
    if json {
        return print_json(&format!("{}\n", users.iter().map(as_json).collect::<Value>()));
    }
    let mut table = Table::default().widest(24);
    table.header(["NAME", "ROLE", "PASSWORD", ">SSH KEYS", "REVOKED"]);
    for user in users.iter() {
        let role = user.role.map_or("-", Role::word);
        let password = if user.scram.is_some() { "yes" } else { "-" };
        let revoked = user.revoked.as_deref().unwrap_or_default();
        table.row([user.name.as_str(), role, password, &user.ssh_keys.len().to_string(), revoked]);
    }
    let rendered = table.render();
    let mut rows = rendered.lines();
    let mut out = format!("{}\n", rows.next().unwrap_or_default());
    for (user, row) in users.iter().zip(rows) {
        out += &format!("{row}\n");
        for (what, names) in lists(user) {
            if !names.is_empty() {
                let line = wrapped(&format!("  {what} "), "    ", &names.join(", "), WIDTH);
                out += &format!("{line}\n");
            }
        }
    }
    print(&out)
}

fn as_json(user: &User) -> Value {
    json!({
        "name": user.name,
        "role": user.role.map(Role::word),
        "groups": user.groups,
        "password": user.scram.is_some(),
        "principals": user.principals,
        "certificates": user.certificates,
        "ssh_keys": user.ssh_keys.len(),
        "accounts": accounts(user),
        "revoked": user.revoked,
    })
}

fn accounts(user: &User) -> Vec<String> {
    user.accounts.iter().map(Account::to_string).collect()
}

fn lists(user: &User) -> [(&'static str, Vec<String>); 4] {
    [
        ("groups", user.groups.clone()),
        ("principals", user.principals.clone()),
        ("certificates", user.certificates.clone()),
        ("accounts", accounts(user)),
    ]
}
