//! Records of hosts that are gone: who is told how they leave the DNS, and which names are refused. No server is asked here.

use testing::sshd::keygen;

use crate::domain::Home;

fn add(home: &Home, name: &str, kind: &str) -> String {
    let key = home.file(&format!("{name}.{kind}"));
    keygen(key.as_ref(), &["-t", kind]);
    home.said(&["host", "add", name, "--key", &format!("{key}.pub")]);
    let listed = home.run(&["ssh-keygen", "-l", "-f", &format!("{key}.pub")]);
    listed.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn retiring_a_host_or_a_key_says_how_its_records_leave_the_dns() {
    let home = Home::new();
    let first = add(&home, "gw1", "ed25519");
    let second = add(&home, "gw1", "ecdsa");
    let said = home.said(&["host", "retire", "gw1", "--key", &first]);
    assert!(said.contains("penstock dns push --host gw1 --zone ZONE --server ADDRESS"), "{said}");
    // No record is wanted any more, so a push of the host would find nothing to do.
    let said = home.said(&["host", "retire", "gw1", "--key", &second]);
    assert!(said.contains("penstock dns push --without gw1 --zone ZONE --server ADDRESS"), "{said}");
    add(&home, "web1.example.test", "ed25519");
    let said = home.said(&["host", "retire", "web1.example.test"]);
    assert!(
        said.contains("web1.example.test may have SSHFP records in the DNS, which ssh believes"),
        "{said}"
    );
    assert!(said.contains("penstock dns push --without web1.example.test --server ADDRESS"), "{said}");
    let said = home.said(&["host", "retire", "web1.example.test", "--undo"]);
    assert_eq!(said, "web1.example.test is in service again\n");
}
