//! Reads what `penstock doctor` judges: this machine, and what it gives to a configuration. Opens no port, changes nothing.
//! The judgement is in `crates/logic/src/self_test.rs`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::SystemTime;

use config::Config;
use config::types::{BackendAddress, BindAddress, MaxConnections};
use logic::rings::WantedRings;
use logic::self_test::facts::{
    Binary, Certificate, Clock, Configuration, Descriptors, Facts, Given, Gssapi, IoUring, Ipv6, Kept,
    Kernel, Limits, Measured, NamedBy, Needed, OpenTo, Resolver, Server, Standing, Use, User,
};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd;
use state::engine::EngineState;
use sys::features;
use sys::privilege::{self, Capability};

use crate::confinement::{self, DEFAULT_USER};

mod names;
mod ports;

/// A configuration, and what `penstock check` says of it.
#[derive(Debug)]
pub struct Checked<'a> {
    pub config: &'a Config,
    pub faults: Vec<String>,
}

/// Reads the facts. `file` is the configuration file, if there is one, with what is in it, if it can be served at all.
pub fn facts(
    version: &'static str,
    file: Option<&Path>,
    checked: Result<Checked<'_>, Vec<String>>,
    server: Option<Server>,
) -> Facts {
    let (config, faults) = match checked {
        Ok(checked) => (Some(checked.config), checked.faults),
        Err(faults) => (None, faults),
    };
    let held = ports::held();
    Facts {
        binary: binary(version),
        configuration: file.map(|file| Configuration { file: file.display().to_string(), faults }),
        user: user(config, file),
        capabilities: config.map(|config| needed(config, server.as_ref())).unwrap_or_default(),
        kernel: kernel(config),
        limits: limits(config, server.as_ref()),
        clock: clock(),
        resolver: resolver(config),
        ipv6: ipv6(config),
        certificates: config.map(certificates).unwrap_or_default(),
        ports: config.map(|config| ports::of(config, &held)).unwrap_or_default(),
        gssapi: Gssapi {
            fault: sys::gssapi::Library::load().err(),
            use_: used(
                config.and_then(Config::remote_control).is_some_and(|remote| remote.kerberos.is_some()),
            ),
        },
        server,
    }
}

fn used(is_used: bool) -> Use {
    if is_used { Use::Needed } else { Use::NotNeeded }
}

const WRITABLE_BY_OTHERS: u32 = 0o022;

fn binary(version: &'static str) -> Binary {
    let path = std::env::current_exe().unwrap_or_default();
    let mode = fs::metadata(&path).map(|it| it.permissions().mode());
    let is_open = mode.is_ok_and(|mode| mode & WRITABLE_BY_OTHERS != 0);
    let open_to = if is_open { OpenTo::Others } else { OpenTo::Owner };
    Binary { path: path.display().to_string(), version, open_to }
}

fn user(config: Option<&Config>, file: Option<&Path>) -> User {
    let (name, named_by) = match config.and_then(|config| config.process.user.as_deref()) {
        Some(name) => (name, NamedBy::Configuration),
        None => (DEFAULT_USER, NamedBy::Default),
    };
    let standing = match privilege::user(name) {
        Ok(None) => Standing::Missing,
        Ok(Some(_)) | Err(_) => {
            let at_start = config.and_then(|config| confinement::at_start_by_root(config, file));
            at_start.and_then(|it| it.stays_root).map_or(Standing::Exists, Standing::StaysRoot)
        }
    };
    User { name: name.to_owned(), standing, named_by }
}

fn needed(config: &Config, server: Option<&Server>) -> Vec<Needed> {
    let bounding = privilege::can_be_given();
    let held = server.map(|server| privilege::of_process(server.process));
    let given = |capability: Capability| match &held {
        _ if !bounding.contains(&capability) => Given::Bounded,
        Some(held) if held.contains(&capability) => Given::Yes,
        // Where ordinary users may bind every port, the server needs no right to it.
        Some(_) if capability == Capability::NetBindService && are_low_ports_free() => Given::Yes,
        Some(_) => Given::NotToServer,
        None if unistd::geteuid().is_root() => Given::Yes,
        None => Given::Unknown,
    };
    let all = confinement::capabilities(config).into_iter();
    all.map(|one| Needed { name: one.name(), why: one.reason(), given: given(one) }).collect()
}

fn are_low_ports_free() -> bool {
    number("/proc/sys/net/ipv4/ip_unprivileged_port_start").is_some_and(|first| first <= 1)
}

fn kernel(config: Option<&Config>) -> Kernel {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let has = |path: &str, word: &str| text(path).split_whitespace().any(|found| found == word);
    Kernel {
        release: text("/proc/sys/kernel/osrelease").trim().to_owned(),
        landlock: features::landlock(),
        seccomp: has("/proc/sys/kernel/seccomp/actions_avail", "errno"),
        ktls: has("/proc/sys/net/ipv4/tcp_available_ulp", "tls"),
        bpf: text("/proc/self/mounts").lines().any(|line| line.split(' ').nth(1) == Some("/sys/fs/bpf")),
        bpf_use: used(config.is_some_and(confinement::attaches_programs)),
        io_uring: io_uring(config),
    }
}

fn io_uring(config: Option<&Config>) -> IoUring {
    let wanted = config.map_or(WantedRings::None, Config::wanted_rings);
    let fault = if wanted == WantedRings::None { None } else { EngineState::why_no_ring() };
    IoUring { disabled: number("/proc/sys/kernel/io_uring_disabled"), fault, wanted }
}

/// Default of `backlog` of a listener.
const USUAL_BACKLOG: u64 = 4096;

fn limits(config: Option<&Config>, server: Option<&Server>) -> Limits {
    let of_server = server.and_then(|server| descriptors_of(server.process));
    let (hard, measured) = match of_server {
        Some(hard) => (hard, Measured::Server),
        None => (getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| hard), Measured::Here),
    };
    let connections = config.and_then(|config| match config.process.max_connections {
        MaxConnections::Auto => None,
        MaxConnections::Count(count) => Some(count as u64),
    });
    let listeners = config.map(|config| &*config.listeners).unwrap_or_default();
    let streams = listeners.iter().filter(|listener| listener.dsr().is_none());
    let tracked = number("/proc/sys/net/netfilter/nf_conntrack_count")
        .zip(number("/proc/sys/net/netfilter/nf_conntrack_max"));
    Limits {
        descriptors: Descriptors { hard, measured, connections },
        listen_queue: number("/proc/sys/net/core/somaxconn"),
        backlog: streams.map(|listener| u64::from(listener.backlog)).max().unwrap_or(USUAL_BACKLOG),
        tracked,
    }
}

/// The hard limit of open descriptors of another process.
fn descriptors_of(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn clock() -> Clock {
    let written = std::env::current_exe().and_then(fs::metadata).and_then(|it| it.modified());
    let kept = features::clock().map(|clock| match clock {
        features::Clock::Kept => Kept::Yes,
        features::Clock::Alone => Kept::No,
    });
    Clock { now: SystemTime::now(), written: written.ok(), kept }
}

fn resolver(config: Option<&Config>) -> Resolver {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let servers = servers.map(|server| server.trim().to_owned()).collect();
    let pools = config.map(|config| &*config.pools).unwrap_or_default();
    let addresses = pools.iter().flat_map(|pool| &pool.backends).map(|backend| &backend.address);
    let names = addresses.filter_map(|address| match address {
        BackendAddress::Name { host, .. } => Some(host.clone()),
        BackendAddress::Dns(_) | BackendAddress::Discovered { .. } | BackendAddress::Ip(_) => None,
        // A host of SSH may be one of ssh_config(5) only.
        BackendAddress::Unix(_) | BackendAddress::Ssh { .. } => None,
    });
    Resolver { servers, names: names::look_up(names.collect()) }
}

fn ipv6(config: Option<&Config>) -> Ipv6 {
    let interfaces = fs::read_to_string("/proc/net/if_inet6").ok();
    // Address, index, prefix, scope (0 is global), flags, name.
    let is_global = |line: &str| line.split_whitespace().nth(3) == Some("00");
    let listeners = config.map(|config| &*config.listeners).unwrap_or_default();
    let named_by = listeners.iter().filter(|listener| {
        listener.binds.iter().any(|bind| matches!(bind, BindAddress::Ip(address) if address.is_ipv6()))
    });
    Ipv6 {
        kernel: interfaces.is_some(),
        address: interfaces.is_some_and(|text| text.lines().any(is_global)),
        named_by: named_by.map(|listener| format!("listener.{}.bind", listener.name)).collect(),
    }
}

fn certificates(config: &Config) -> Vec<Certificate> {
    let certificates = config.tls_sections().flat_map(|(section, tls)| {
        let of = move |validity: tls::Validity| Certificate {
            section: section.clone(),
            name: validity.name,
            not_before: validity.not_before,
            not_after: validity.not_after,
        };
        tls::validities(tls).into_iter().map(of)
    });
    certificates.collect()
}
