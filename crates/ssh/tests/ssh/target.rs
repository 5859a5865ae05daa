//! Targets as `ssh_config` describes them: hosts on the way, each by its own configuration; loops; what only OpenSSH can do.

use std::fs;
use std::time::Duration;

use hosts::fleet::ending::{Failure, Phase, Reason, Remote};
use hosts::ssh::config::{Asked, Family, KnownAlgorithms, Local};
use ssh::{ConfigFiles, Configured, Proxy, SshConfig, Target};
use tempfile::TempDir;

fn target(text: &str, host: &str) -> Result<Configured, Failure> {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("config");
    fs::write(&file, text).unwrap();
    let local = Local {
        user: "me".to_owned(),
        uid: nix::unistd::Uid::effective().as_raw(),
        home: dir.path().to_str().unwrap().to_owned(),
        hostname: "here".to_owned(),
    };
    let config = SshConfig::of(&ConfigFiles::Only(file), local, KnownAlgorithms::openssh());
    Target::from_config(&config, &Asked::parse(host).unwrap())
}

/// The hosts of a way, as `user@host:port`.
fn way(target: &Target) -> Vec<String> {
    let here = |target: &Target| format!("{}@{}:{}", target.user, target.host, target.port);
    let before: Vec<String> = match &target.proxy {
        Proxy::Jump(hops) => hops.iter().map(here).collect(),
        _ => Vec::new(),
    };
    before.into_iter().chain([here(target)]).collect()
}

#[test]
fn every_host_of_a_chain_has_a_configuration_of_its_own() {
    let text = "Host web1\n HostName 10.0.0.1\n ProxyJump gate,you@inner:2200\n\
                Host gate\n HostName gate.example.com\n User gatekeeper\n Port 2222\n\
                Host inner\n Port 1\n ProxyJump never\n ProxyCommand never\nHost *\n User fleet\n";
    let target = target(text, "web1").unwrap().target;
    assert_eq!(way(&target), ["gatekeeper@gate.example.com:2222", "you@inner:2200", "fleet@10.0.0.1:22"]);
    assert_eq!(target.name, "web1");
}

#[test]
fn the_nearest_host_of_a_chain_may_be_behind_another_one() {
    let text = "Host web1\n ProxyJump b\nHost b\n ProxyJump a\n";
    assert_eq!(way(&target(text, "web1").unwrap().target), ["me@a:22", "me@b:22", "me@web1:22"]);
}

#[test]
fn hosts_that_are_reached_through_themselves_are_refused() {
    for (text, host) in [
        ("Host a\n ProxyJump b\nHost b\n ProxyJump a\n", "a"),
        ("Host *\n ProxyJump gate\n", "web1"),
        ("Host a\n ProxyJump b\nHost b\n ProxyJump c\nHost c\n ProxyJump b\n", "a"),
        ("Host a\n ProxyJump x,a\n", "a"),
    ] {
        let failure = target(text, host).unwrap_err();
        assert_eq!(
            (failure.phase, failure.reason, failure.remote),
            (Phase::Queued, Reason::BadConfiguration, Remote::NotStarted),
            "{text}"
        );
        assert!(
            failure.detail.contains("through") || failure.detail.contains("the host itself"),
            "{failure:?}"
        );
    }
    let text = "Host gate\n ProxyJump none\nHost *\n ProxyJump gate\n";
    assert_eq!(way(&target(text, "web1").unwrap().target), ["me@gate:22", "me@web1:22"]);
}

#[test]
fn ways_through_more_than_sixteen_hosts_are_refused_as_too_long() {
    let list = |from: usize, to: usize| (from..=to).map(|at| format!("h{at}")).collect::<Vec<_>>().join(",");
    let nested = |to: usize| {
        (1..=to).map(|at| format!("Host h{at}\n ProxyJump h{}\n", at + 1)).collect::<Vec<_>>().concat()
    };
    // As a list, one behind another, and both together.
    for (fits, too_long) in [
        (format!("Host h0\n ProxyJump {}\n", list(1, 16)), format!("Host h0\n ProxyJump {}\n", list(1, 17))),
        (
            format!("Host h0\n ProxyJump h1\n{}", nested(15)),
            format!("Host h0\n ProxyJump h1\n{}", nested(16)),
        ),
        (
            format!("Host h0\n ProxyJump {}\nHost h1\n ProxyJump {}\n", list(1, 8), list(11, 18)),
            format!("Host h0\n ProxyJump {}\nHost h1\n ProxyJump {}\n", list(1, 8), list(11, 19)),
        ),
    ] {
        assert_eq!(way(&target(&fits, "h0").unwrap().target).len(), 17, "{fits}");
        let failure = target(&too_long, "h0").unwrap_err();
        assert_eq!(failure.reason, Reason::BadConfiguration);
        assert!(failure.detail.contains("the way to it goes through "), "{failure:?}");
        assert!(!failure.detail.contains("again"), "{failure:?}");
    }
}

#[test]
fn what_only_openssh_can_do_is_refused_for_the_host_and_for_those_on_the_way() {
    let text = "Host web1\n ProxyJump gate\nHost gate\n PKCS11Provider /p11.so\n";
    let failure = target(text, "web1").unwrap_err();
    assert_eq!(failure.reason, Reason::BadConfiguration);
    assert!(
        failure.detail.starts_with("gate: ") && failure.detail.contains("config:4: pkcs11provider"),
        "{failure:?}"
    );
    assert!(failure.advice.unwrap().contains("--engine openssh"));
    assert!(target(text, "web2").is_ok());
}

#[test]
fn faults_of_the_files_are_failures_before_anything_is_tried() {
    let failure = target("Prot 22\nPort x\n", "web1").unwrap_err();
    assert_eq!(failure.reason, Reason::BadConfiguration);
    assert!(
        failure.detail.contains(":1: prot: no such keyword") && failure.detail.contains(":2: port:"),
        "{failure:?}"
    );
}

#[test]
fn limits_and_algorithms_are_taken_over() {
    let text = "ConnectTimeout 7\nServerAliveInterval 0\nServerAliveCountMax 9\nRekeyLimit 1M 1h\nCiphers aes256-ctr\n\
                HostKeyAlias fleet\nIdentityFile /keys/a\nAddressFamily inet6\nRequiredRSASize 3000\n";
    let target = target(text, "web1").unwrap().target;
    assert_eq!(target.connect_timeout, Duration::from_secs(7));
    assert_eq!((target.keep_alive.interval, target.keep_alive.count), (None, 9));
    assert_eq!((target.rekey.bytes, target.rekey.time), (1 << 20, Duration::from_secs(3600)));
    assert_eq!(target.algorithms.ciphers, ["aes256-ctr"]);
    assert_eq!((target.name.as_str(), target.host.as_str()), ("fleet", "web1"));
    assert_eq!((target.addresses.family, target.algorithms.rsa_bits), (Family::V6, 3000));
}

#[test]
fn a_command_on_the_way_is_kept_for_the_nearest_host() {
    let target =
        target("Host web1\n ProxyJump gate\nHost gate\n ProxyCommand nc %h %p\n", "web1").unwrap().target;
    let Proxy::Jump(hops) = target.proxy else { panic!("{:?}", target.proxy) };
    assert!(
        matches!(&hops[0].proxy, Proxy::Command(command) if command == "nc gate 22"),
        "{:?}",
        hops[0].proxy
    );
}

#[test]
fn port_is_blamed_beside_the_dns_and_never_left_out() {
    let advice = |text: &str| {
        let target = target(text, "web2").unwrap().target;
        target.advice(Reason::WrongHost, "move it".to_owned())
    };
    assert!(advice("").starts_with(
        "the address of web2 comes from the DNS (or /etc/hosts): correct it there, or set HostName"
    ));
    let both = advice("Host web2\n  Port 2202\n");
    assert!(both.starts_with("the address of web2 comes from the DNS (or /etc/hosts), and "), "{both}");
    assert!(
        both.ends_with(":2 says Port 2202: find the address of web2, and correct the wrong one there"),
        "{both}"
    );
}
