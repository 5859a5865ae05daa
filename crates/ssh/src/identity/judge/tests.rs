use std::net::UdpSocket;

use super::*;
use crate::identity::Places;

#[tokio::test(start_paused = true)]
async fn name_server_that_is_silent_is_not_waited_for_as_long_as_a_host() {
    let directory = tempfile::tempdir().unwrap();
    let (configuration, state) = (directory.path().join("config"), directory.path().join("state"));
    let store = Store::new(Places { configuration, state });
    let key: PublicKey =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH".parse().unwrap();
    let name: Name = "web1.example".parse().unwrap();
    store
        .change(&name, |_| {
            Ok(hosts::identity::HostFile::parse(&name, "id web1.example\nsshfp require-secure\n").unwrap())
        })
        .unwrap();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let dns = Dns::new(&Anchor::Root, Some(silent.local_addr().unwrap())).unwrap();
    let identities = Identities::load(store).unwrap().with_dns(dns);
    let begun = tokio::time::Instant::now();
    let answer = identities.sshfp("web1.example", 22, &key).await;
    assert_eq!(answer, SshfpAnswer::Failed("no answer within 3 s".into()));
    assert_eq!(begun.elapsed().as_secs(), 3);
}
