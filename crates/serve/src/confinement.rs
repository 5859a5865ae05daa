//! Takes from the process what it needs no more once its sockets are bound: user, capabilities, files, system calls.
//!
//! `start.rs` calls [`drop_privileges`] and [`restrict`] while there is one thread, and [`beyond`] at each reload: what
//! was taken cannot be given back. `crates/sys/src/privilege.rs` and `crates/sys/src/sandbox.rs` act,
//! `crates/serve/src/paths.rs` says which files a configuration needs.

use std::cmp::Reverse;
use std::env;
use std::path::{Path, PathBuf};

use config::Config;
use config::types::{BindAddress, Listener, SourceAddress};
use logic::dsr::path::DataPath;
use nix::unistd;
use state::State;
use state::confinement::{Confinement, Restriction};
use state::events::Level;
use sys::privilege::{self, Capability, PrivilegeError, Reach};
use sys::sandbox::calls::{Children, Packets, Rings};
use sys::sandbox::{self, Enforced, Files};

use crate::acme::helper;
use crate::causes::causes;
use crate::keytab::{Keytab, NamedBy};
use crate::paths::{self, Access, Need};

mod denied;

pub use denied::{AtStart, RefusedPath, at_start_by_root, explain_log_error, explain_low_port};

/// User of a process that root started without `process.user`, if it exists and may use what the configuration names.
pub const DEFAULT_USER: &str = "penstock";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sandbox {
    On,
    /// `--no-sandbox`
    Off,
}

/// Changes the user and drops capabilities, new privileges and core dumps. `programs` are directories of programs that forward
/// packets, and `further` is what is kept beside what the configuration needs.
pub fn drop_privileges(
    config: &Config,
    needs: &[Need],
    programs: &[PathBuf],
    further: Option<Capability>,
) -> Result<Confinement, PrivilegeError> {
    let keep: Vec<_> = capabilities(config).into_iter().chain(further).collect();
    let had = privilege::permitted();
    let group = config.process.group.as_deref();
    // `penstock ctl` of the new user needs the socket.
    let drop_to = |user: &str| {
        if let Some(control) = &config.control {
            privilege::give_socket(&control.socket, user, group)?;
        }
        // At the end it takes away the names of the programs that forward packets.
        programs.iter().try_for_each(|directory| privilege::give_directory(directory, user, group))?;
        privilege::drop_to(user, group, &keep)
    };
    let (dropped, stays_root) = match &config.process.user {
        Some(user) => (drop_to(user)?, None),
        None if !unistd::geteuid().is_root() => (privilege::stay(&keep)?, None),
        None => match why_root(config, needs)? {
            None => (drop_to(DEFAULT_USER)?, None),
            why => (privilege::stay(&keep)?, why),
        },
    };
    let capabilities = dropped.kept.iter().map(|kept| kept.name()).collect();
    let given_up = had.iter().filter(|had| !dropped.kept.contains(had)).map(|had| had.name()).collect();
    Ok(Confinement { uid: dropped.uid, stays_root, capabilities, given_up, ..Confinement::default() })
}

/// Capabilities that the process keeps: a reload may bind ports below 1024 again, and open packet sockets; connections from
/// the addresses of clients need one for each. Nothing else needs any.
pub fn capabilities(config: &Config) -> Vec<Capability> {
    let below_1024 = |bind: &BindAddress| match bind {
        BindAddress::AnyIp(port) => (1..1024).contains(port),
        BindAddress::Ip(address) => (1..1024).contains(&address.port()),
        BindAddress::EveryPort(_) | BindAddress::Unix(_) | BindAddress::Systemd(_) => false,
    };
    let (packets, sockets): (Vec<_>, Vec<_>) =
        config.listeners.iter().partition(|listener| has_packets(listener));
    let is_low = sockets.iter().flat_map(|listener| &listener.binds).any(below_1024);
    let low = is_low.then_some(Capability::NetBindService);
    let of_clients = config.pools.iter().any(|pool| pool.source_address == SourceAddress::Client);
    let raw = (of_clients || !packets.is_empty()).then_some(Capability::NetRaw);
    low.into_iter().chain(raw).collect()
}

/// Whether a listener may open packet sockets.
fn has_packets(listener: &Listener) -> bool {
    listener.dsr().is_some_and(|settings| settings.data_path != DataPath::Proxy)
}

/// Whether programs in the kernel may forward packets of a listener: they are attached before capabilities are dropped.
pub fn attaches_programs(config: &Config) -> bool {
    let mut services = config.listeners.iter().filter_map(|listener| listener.dsr());
    services.any(|settings| !matches!(settings.data_path, DataPath::AfPacket | DataPath::Proxy))
}

/// Explains why root does not become the default user. `None` if it can.
fn why_root(config: &Config, needs: &[Need]) -> Result<Option<String>, PrivilegeError> {
    if paths::starts_programs(config) {
        return Ok(Some(format!(
            "backends behind SSH use the keys of root; set process.user to log in as another user than root or {DEFAULT_USER}"
        )));
    }
    if !privilege::may_change_user() && matches!(unistd::User::from_name(DEFAULT_USER), Ok(Some(_))) {
        return Ok(Some(format!(
            "this process may not become user \"{DEFAULT_USER}\": it has no CAP_SETUID and CAP_SETGID, as in some containers \
             and after an upgrade; a start by root with them does"
        )));
    }
    let asked = asked(needs);
    let asked = asked.iter().map(|(path, reach)| (&**path, *reach));
    let refused = match privilege::unreachable(DEFAULT_USER, asked) {
        Err(PrivilegeError::NoSuchUser { .. }) => {
            return Ok(Some(format!(
                "there is no user \"{DEFAULT_USER}\": create it (useradd --system {DEFAULT_USER}) or set process.user"
            )));
        }
        asked => asked?,
    };
    Ok(refused.map(|path| {
        let by = named_by(needs, path).map_or("", |need| &*need.key);
        format!("user \"{DEFAULT_USER}\" may not use {} ({by}): {}", path.display(), how_to_give(path))
    }))
}

/// How an operator gives the default user a path. A directory may hold what other programs write, as `/var/log` does.
fn how_to_give(path: &Path) -> String {
    let named = path.display();
    match path.is_dir() {
        true => format!(
            "name a directory of that user (install -d -o {DEFAULT_USER} {}), or give it this one if no other program uses it \
             (chown {DEFAULT_USER} {named})",
            path.join(DEFAULT_USER).display()
        ),
        false => format!("give it to that user (chown {DEFAULT_USER} {named})"),
    }
}

/// What the needs ask of the user of the process: paths, and files in directories that are read.
fn asked(needs: &[Need]) -> Vec<(PathBuf, Reach)> {
    let paths = needs.iter().filter(|need| need.key != paths::PID_FILE).map(|need| {
        let reach = match need.access {
            Access::Read => Reach::Read,
            Access::Change => Reach::Change,
            Access::Connect => Reach::Write,
        };
        (need.path.clone(), reach)
    });
    let files = needs.iter().filter(|need| need.access == Access::Read).flat_map(files_of);
    paths.chain(files.map(|file| (file, Reach::Read))).collect()
}

/// Returns the need that asks for a path: of several directories above it the nearest.
fn named_by<'a>(needs: &'a [Need], path: &Path) -> Option<&'a Need> {
    let above = needs.iter().filter(|need| path.starts_with(&need.path));
    above.min_by_key(|need| Reverse(need.path.components().count()))
}

/// Files in a directory that is read, such as private keys.
fn files_of(need: &Need) -> Vec<PathBuf> {
    let below = std::fs::read_dir(&need.path).into_iter().flatten().flatten();
    below.map(|entry| entry.path()).collect()
}

/// Restricts files and system calls as far as the kernel can. `kept` are directories of programs that forward packets.
pub fn restrict(
    confinement: &mut Confinement,
    config: &Config,
    needs: &[Need],
    kept: &[PathBuf],
    rings: Rings,
    sandbox: Sandbox,
) {
    if sandbox == Sandbox::Off {
        let off = || Restriction::Not("--no-sandbox".to_owned());
        (confinement.files, confinement.calls) = (off(), off());
        return;
    }
    let programs = paths::starts_programs(config);
    confinement.files = match programs {
        true => Restriction::Not("SSH backends start programs of ssh_config, which use any file".to_owned()),
        false => {
            let mut files = files(confinement.uid, needs);
            files.change.extend_from_slice(kept);
            // The file alone: what is beside it is not ours, and another file that takes its place needs a new start.
            let keytab = Keytab::of(config.remote_control());
            files.read.extend(keytab.filter(|it| it.named_by == NamedBy::System).map(|it| it.path));
            let restricted = sandbox::restrict_files(&files);
            if !matches!(restricted, Ok(Enforced::Not) | Err(_)) {
                confinement.reachable = files;
            }
            match restricted {
                Ok(Enforced::Fully) => Restriction::Restricted,
                Ok(Enforced::Partly) => Restriction::Partly("this kernel has an older Landlock".to_owned()),
                Ok(Enforced::Not) => Restriction::Not("this kernel has no Landlock".to_owned()),
                Err(error) => Restriction::Not(causes(&error)),
            }
        }
    };
    let children = if programs { Children::Any } else { Children::None };
    let packets = match config.listeners.iter().any(has_packets) {
        true => Packets::Used,
        false => Packets::Unused,
    };
    confinement.calls = match (sandbox::filter_calls(children, packets, rings), programs) {
        (Ok(()), false) => Restriction::Restricted,
        (Ok(()), true) => Restriction::Partly("SSH backends start programs of ssh_config".to_owned()),
        (Err(error), _) => Restriction::Not(causes(&error)),
    };
}

/// Says once what is not as it should be.
pub fn tell(state: &State) {
    let confinement = &state.confinement;
    if let Some(why) = &confinement.stays_root {
        state.events.record(
            Level::Warning,
            "process",
            format!("the user stays root, without its capabilities: {why}"),
        );
    }
    for (what, restriction) in [("files", &confinement.files), ("system calls", &confinement.calls)] {
        let message = match restriction {
            Restriction::Restricted | Restriction::Unknown => continue,
            Restriction::Partly(why) => format!("{what} are restricted in part: {why}"),
            Restriction::Not(why) => format!("{what} are NOT restricted: {why}"),
        };
        state.events.record(Level::Warning, "process", message);
    }
    for capability in &confinement.capabilities {
        let all = [Capability::NetBindService, Capability::NetRaw, Capability::NetAdmin];
        let why = all.into_iter().find(|one| one.name() == *capability).map_or("", Capability::reason);
        let message = format!("{capability} is kept: {why}");
        state.events.record(Level::Info, "process", message);
    }
}

/// Explains why this configuration needs a new start: it needs files that were not allowed at the start of the process.
pub fn beyond(confinement: &Confinement, config: &Config, file: Option<&Path>) -> Option<String> {
    // The helper runs no other commands, with or without a sandbox.
    if let Some(new) = helper::commands(config).into_iter().find(|one| !confinement.commands.contains(one)) {
        let command = new.join(" ");
        return Some(format!(
            "acme: the command {command} is not among those that this process may run since its start\n  hint: restart penstock"
        ));
    }
    if matches!(confinement.files, Restriction::Unknown | Restriction::Not(_)) {
        let restricted = confinement.calls == Restriction::Restricted;
        return (restricted && paths::starts_programs(config)).then(|| PROGRAMS.to_owned());
    }
    if paths::starts_programs(config) {
        return Some(PROGRAMS.to_owned());
    }
    let Files { read, change } = &confinement.reachable;
    paths::of(config, file).into_iter().find_map(|need| {
        let allowed = |path: &PathBuf| {
            let below = |list: &[PathBuf]| list.iter().any(|known| path.starts_with(known));
            below(change) || need.access == Access::Read && below(read)
        };
        let path = need.reachable().into_iter().find(|path| !allowed(path))?;
        let (key, path) = (&need.key, path.display());
        Some(format!(
            "{key}: {path} is not among the files that this process may use since its start\n  hint: restart penstock"
        ))
    })
}

const PROGRAMS: &str = "a backend behind SSH may start programs, which this process gave up at its start
  hint: restart penstock";

fn files(uid: u32, needs: &[Need]) -> Files {
    let mut read: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    // Other users than root may not read secrets there anyway, and a resolver file that is replaced stays readable.
    match uid {
        0 => read.extend(IN_ETC.iter().map(PathBuf::from)),
        _ => read.push("/etc".into()),
    }
    read.extend(["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().filter_map(env::var_os).map(PathBuf::from));
    let of = |access| needs.iter().filter(move |need| need.access == access).flat_map(Need::reachable);
    read.extend(of(Access::Read));
    let change = of(Access::Change).chain(["/dev/null".into()]).collect();
    Files { read, change }
}

/// What the C library and we read on any system: itself, name look-ups, time zones, authorities, this process.
const SYSTEM: &[&str] = &[
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share",
    "/usr/local/share/ca-certificates",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/run/nscd",
    "/proc",
    "/sys/fs/cgroup",
    "/sys/devices/system",
    "/dev/urandom",
    "/dev/random",
];

/// Files of root in /etc, where others are secret.
const IN_ETC: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/passwd",
    "/etc/group",
    "/etc/localtime",
    "/etc/ld.so.cache",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
];
