//! Makes a [`Target`] from `ssh_config`: the host, its keys and its jump hosts, each with its own configuration.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hosts::fleet::ending::{Failure, Phase, Reason, Remote};
use hosts::ssh::config::{self, Agent, Asked, Faults, Hop, Jump, KeyFile, Keyword, Notice, Resolved, Value};

use super::{Algorithms, Before, KeepAlive, LONGEST_WAY, LocationSources, Proxy, Rekey, Target};
use crate::config::SshConfig;
use crate::keys::{Identity, KeyPlan, Method, Named, OtherKeys};

#[derive(Debug, Clone)]
pub struct Configured {
    pub target: Target,
    /// Settings that OpenSSH follows and penstock ignores without harm. A setting that needs OpenSSH is a failure
    /// instead.
    pub notices: Vec<Notice>,
}

impl Target {
    /// Makes a target from the settings of `ssh_config` for a host and its jump hosts.
    ///
    /// # Errors
    /// Faults in the files, a host that is reached through itself, or a setting that only OpenSSH supports.
    pub fn from_config(config: &SshConfig, asked: &Asked) -> Result<Configured, Failure> {
        let resolved = config.resolve(asked).map_err(|faults| wrong(&asked.host, &faults))?;
        let notices = resolved.notices.clone();
        let target = reach(config, asked, &resolved, Before::Own, &mut Vec::new())?;
        Ok(Configured { target, notices })
    }
}

/// Makes the target of one host with its jump hosts. `way` has the hosts that are reached through this host.
fn reach(
    config: &SshConfig,
    asked: &Asked,
    resolved: &Resolved,
    before: Before,
    way: &mut Vec<String>,
) -> Result<Target, Failure> {
    let here = format!("{}@{}:{}", resolved.user, resolved.host, resolved.port);
    let is_loop = way.contains(&here);
    if is_loop || way.len() > LONGEST_WAY {
        way.push(here);
        let chain = way.join(" -> ");
        if !is_loop {
            return Err(too_long(
                &asked.host,
                &format!("goes through more than {LONGEST_WAY} hosts: {chain}"),
            ));
        }
        let detail = format!("{}: ProxyJump goes through the same host again: {chain}", asked.host);
        return Err(failure(
            detail,
            Some("`ProxyJump none` in the block of the jump host ends it".to_owned()),
        ));
    }
    if let Some(notice) = resolved.obstacles().next() {
        let all: Vec<String> = resolved.obstacles().map(describe).collect();
        let detail = format!("{}: {}", asked.host, all.join("; "));
        let advice = match notice.place {
            Some(_) => "change the configuration, or use --engine openssh, which follows it",
            None => "use --engine openssh",
        };
        return Err(failure(detail, Some(advice.to_owned())));
    }
    way.push(here);
    let proxy = match &resolved.proxy {
        _ if before == Before::Chosen => Proxy::None,
        config::Proxy::Direct => Proxy::None,
        config::Proxy::Command(command) => Proxy::Command(command.clone()),
        config::Proxy::Jump(hops) => Proxy::Jump(chain(config, &asked.host, hops, way)?),
    };
    way.pop();
    Ok(target(resolved, &config.local().home, proxy))
}

/// Returns the jump hosts of `host`, the first to connect to first. Only this first one may have jump hosts from its
/// own configuration; the others are reached through the one before them.
fn chain(
    config: &SshConfig,
    host: &str,
    hops: &[Hop],
    way: &mut Vec<String>,
) -> Result<Vec<Target>, Failure> {
    let within = |count: usize| match count > LONGEST_WAY {
        true => Err(too_long(host, &format!("goes through {count} hosts, and {LONGEST_WAY} are the most"))),
        false => Ok(()),
    };
    // The limit is checked before any host is evaluated, because this may run commands; and again with the jump hosts
    // of the first.
    within(hops.len())?;
    let mut targets = Vec::new();
    for (at, hop) in hops.iter().enumerate() {
        // The hops before this one, as for the option -J of OpenSSH.
        let jump = (at > 0).then(|| Jump::Through(hops[..at].to_vec()));
        let asked =
            Asked { host: hop.host.clone(), user: hop.user.clone(), port: hop.port, jump, command: None };
        let resolved = config.resolve(&asked).map_err(|faults| wrong(&asked.host, &faults))?;
        let before = if at == 0 { Before::Own } else { Before::Chosen };
        let mut target = reach(config, &asked, &resolved, before, way)?;
        if let Proxy::Jump(nearer) = &mut target.proxy {
            targets.append(nearer);
            target.proxy = Proxy::None;
        }
        targets.push(target);
    }
    within(targets.len())?;
    Ok(targets)
}

fn too_long(host: &str, what: &str) -> Failure {
    failure(
        format!("{host}: the way to it {what}"),
        Some("take hosts out of ProxyJump in ~/.ssh/config".to_owned()),
    )
}

fn target(resolved: &Resolved, home: &str, proxy: Proxy) -> Target {
    let mut target = Target::new(resolved.identity(), &resolved.user);
    target.host.clone_from(&resolved.host);
    target.addresses.family = resolved.family;
    target.port = resolved.port;
    // Inside a lab, `~` would be misread as the user's own home directory.
    target.said = LocationSources::of(resolved, if crate::lab_home::is_inside(home) { "" } else { home });
    target.proxy = proxy;
    target.keys = key_plan(resolved, home);
    let list = |names: &Option<Vec<String>>| names.clone().unwrap_or_default();
    target.algorithms = Algorithms {
        kex: list(&resolved.kex),
        ciphers: list(&resolved.ciphers),
        macs: list(&resolved.macs),
        host_keys: list(&resolved.host_key_algorithms),
        rsa_bits: usize::try_from(resolved.required_rsa_bits).unwrap_or(usize::MAX),
    };
    if let Some(limit) = resolved.connect_timeout {
        target.connect_timeout = limit;
    }
    let usual = KeepAlive::default();
    let interval = resolved.alive_interval.map_or(usual.interval, |time| (!time.is_zero()).then_some(time));
    let count = resolved.alive_count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usual.count);
    target.keep_alive = KeepAlive { interval, count };
    let usual = Rekey::default();
    let bytes = resolved.rekey.bytes.and_then(|bytes| usize::try_from(bytes).ok());
    let time = resolved.rekey.time.unwrap_or(usual.time);
    target.rekey = Rekey {
        bytes: bytes.map_or(usual.bytes, |bytes| bytes.clamp(SMALLEST_REKEY, usual.bytes)),
        time: time.max(Duration::from_secs(1)),
    };
    target
}

fn wrong(host: &str, faults: &Faults) -> Failure {
    // The faults are printed on one line, among those of other hosts; the hint follows its fault.
    let faults: Vec<String> = faults.0.iter().map(|fault| fault.to_string().replace("\n  ", "; ")).collect();
    failure(format!("{host}: the SSH configuration has faults: {}", faults.join("; ")), None)
}

fn describe(notice: &Notice) -> String {
    let place = notice.place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
    let keyword = notice.keyword.map_or("", |keyword| keyword.name());
    format!("{place}{keyword} {}: {}", notice.value, notice.meaning)
}

fn failure(detail: String, advice: Option<String>) -> Failure {
    Failure {
        phase: Phase::Queued,
        reason: Reason::BadConfiguration,
        detail,
        advice,
        remote: Remote::NotStarted,
    }
}

/// Returns the keys of a host. Without IdentityFile the default files are used; `IdentityFile none` means no file.
fn key_plan(resolved: &Resolved, home: &str) -> KeyPlan {
    let agent = match &resolved.agent {
        Agent::Environment => {
            std::env::var_os("SSH_AUTH_SOCK").filter(|path| !path.is_empty()).map(PathBuf::from)
        }
        Agent::None => None,
        Agent::Socket(path) => Some(PathBuf::from(path)),
    };
    let plan = KeyPlan::of_home(Path::new(home), agent);
    let named = |file: &KeyFile| Identity { path: PathBuf::from(&file.path), named: Named::ByUser };
    let is_named = resolved.settings.iter().any(|setting| setting.keyword == Keyword::IdentityFile);
    KeyPlan {
        identities: match is_named {
            true => resolved.identity_files.iter().map(named).collect(),
            false => plan.identities,
        },
        certificates: resolved.certificate_files.iter().map(|file| PathBuf::from(&file.path)).collect(),
        others: if resolved.identities_only { OtherKeys::Ignored } else { OtherKeys::Offered },
        accepted: resolved.accepted_algorithms.clone(),
        public_key: if resolved.public_key { Method::On } else { Method::Off },
        // The user is asked questions only if the configuration has the keyword.
        interactive: match resolved.setting(Keyword::KbdInteractiveAuthentication) {
            Some(Value::Word("yes")) => Method::On,
            _ => Method::Off,
        },
        agent: plan.agent,
    }
}

/// Minimum number of bytes between two key exchanges: more frequent ones only take time.
const SMALLEST_REKEY: usize = 64 * 1024;
