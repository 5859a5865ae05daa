use super::*;

fn key(seed: u8) -> PublicKey {
    let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
    blob.extend_from_slice(&[seed; 32]);
    PublicKey::from_blob(&blob).unwrap()
}

fn today() -> Date {
    "2026-11-20".parse().unwrap()
}

fn take(text: &str, index: &Index) -> Import {
    import(&KnownHosts::parse(text), &[], &[], index, today())
}

#[test]
fn lines_of_one_host_become_one_file_with_its_addresses_as_hints() {
    let text = format!(
        "10.0.0.1 {k1}\nweb1,www {k1}\nweb1 {k2}\n[web1]:2222 {k3}\n10.0.0.9 {k4}\nweb1 {k2}\n",
        k1 = key(1),
        k2 = key(2),
        k3 = key(3),
        k4 = key(4)
    );
    let import = take(&text, &Index::default());
    let names: Vec<&str> = import.hosts.iter().map(|host| host.name().as_str()).collect();
    assert_eq!(names, ["10.0.0.9", "[web1]:2222", "web1"]);
    let web1 = &import.hosts[2];
    assert_eq!(web1.pins().count(), 2);
    assert_eq!(web1.address().addresses, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
    assert!(web1.names().any(|name| name.as_str() == "www"));
    assert_eq!((import.known, import.left), (1, vec![]));
}

#[test]
fn what_cannot_be_taken_is_told_with_its_line() {
    let known = HostFile::parse(
        &"web1".parse().unwrap(),
        &format!("id web1\npin {} from=console 2026-01-01\n", key(9)),
    )
    .unwrap();
    let index = Index::new(vec![known], Vec::new(), Vec::new(), [key(8)]);
    let text = format!(
        "*.example.com {k1}\nweb1 {k2}\nweb2 {k8}\n|1|CQkJCQkJCQkJCQkJCQkJCQkJCQk=|CQkJCQkJCQkJCQkJCQkJCQkJCQk= {k1}\nweb1 {k9}\nnonsense\n",
        k1 = key(1),
        k2 = key(2),
        k8 = key(8),
        k9 = key(9)
    );
    let import = take(&text, &index);
    let said: Vec<String> = import.left.iter().map(|left| format!("{}: {}", left.line, left.why)).collect();
    assert_eq!(said, [
        "1: *.example.com is a pattern: one key for many hosts identifies none of them; use an authority".to_owned(),
        format!("2: web1 has another ssh-ed25519 pinned: if this one is right, penstock host add web1 --replace --fingerprint {}", key(2).fingerprint()),
        "3: the key is revoked".into(),
        "4: the name is hashed and none of the given names fits: give it with --name, or a file with --names".into(),
        "6: names, an algorithm and a key stand on a line".into(),
    ]);
    assert_eq!(import.known, 1);
    assert_eq!(import.hosts.len(), 0, "a refused key leaves no file: {:?}", import.hosts);
}

#[test]
fn authorities_and_revoked_keys_are_taken_once() {
    let text = format!(
        "@cert-authority *.example.com {k}\n@cert-authority *.example.com {k}\n@revoked * {r}\n",
        k = key(1),
        r = key(2)
    );
    let import = take(&text, &Index::default());
    assert_eq!(import.authorities.len(), 1);
    assert!(import.authorities[0].authority.name.as_str().starts_with("example.com-"));
    assert_eq!((import.revoked, import.known), (vec![key(2)], 1));
}

#[test]
fn trust_on_first_use_outlives_export_and_import() {
    let name: Name = "web1".parse().unwrap();
    let text = format!(
        "id web1\npin {} from=first-use 2026-01-01\npin {} from=rotation(proved by {}, first use) 2026-01-01\n",
        key(1),
        key(2),
        key(1).fingerprint()
    );
    let known = HostFile::parse(&name, &text).unwrap();
    let index = Index::new(vec![known.clone()], Vec::new(), Vec::new(), []);
    let exported = crate::identity::export(&index, &[]);
    let elsewhere = take(&exported, &Index::default());
    let roots: Vec<Root> = elsewhere.hosts[0].pins().map(Pin::root).collect();
    assert_eq!(roots, [Root::FirstUse, Root::FirstUse], "{exported}");

    // A line of known_hosts does not prove a pinned key: ssh may have trusted the key on first use too.
    let here = take(&format!("web1 {}\nweb1 {}\n", key(1), key(2)), &index);
    assert_eq!((here.hosts, here.known), (vec![], 2));
}

#[test]
fn address_with_the_port_of_its_host_is_a_hint_and_no_alias() {
    let name = |name: &str| name.parse::<Name>().unwrap();
    let called = [Called { name: name("web1"), place: name("[10.0.0.1]:2222") }];
    let text = format!("[10.0.0.1]:2222,[10.0.0.2]:2222,[10.0.0.1]:2200 {}\n", key(1));
    let import = import(&KnownHosts::parse(&text), &[], &called, &Index::default(), today());
    let web1 = &import.hosts[0];
    assert_eq!(web1.names().map(Name::as_str).collect::<Vec<_>>(), ["web1", "[10.0.0.1]:2200"]);
    assert_eq!(web1.address().to_string(), "10.0.0.1  10.0.0.2  port=2222");
    let index = Index::new(vec![web1.clone()], Vec::new(), Vec::new(), []);
    for (asked, port) in [("10.0.0.2", 2222), ("[10.0.0.2]:2222", 22), ("10.0.0.1", 2200)] {
        assert!(
            matches!(index.find(asked, port), Found::Host(host) if host.name().as_str() == "web1"),
            "{asked}"
        );
    }
    assert!(matches!(index.find("[10.0.0.9]:2222", 2222), Found::Unknown));
}

#[test]
fn a_second_import_of_names_with_ports_changes_nothing() {
    let text = format!("[10.0.0.9]:2222 {}\n[web1]:2200 {}\n", key(1), key(2));
    let first = take(&text, &Index::default());
    let names: Vec<&str> = first.hosts.iter().map(|host| host.name().as_str()).collect();
    assert_eq!(names, ["10.0.0.9", "web1"]);
    let again = take(&text, &Index::new(first.hosts, Vec::new(), Vec::new(), []));
    assert_eq!((again.hosts, again.known), (vec![], 2));
    // Another port of the name stays another place.
    let text = format!("[web1]:2200,[web1]:2299 {}\n", key(2));
    let other = take(&text, &Index::new(take(&text, &Index::default()).hosts, Vec::new(), Vec::new(), []));
    assert_eq!(other.hosts, vec![]);
}

#[test]
fn line_with_a_key_of_before_is_out_of_date_and_no_reason_to_replace_the_one_of_now() {
    let text = format!("id web1\npin {} from=console 2026-02-02\nretired {} 2026-02-02\n", key(1), key(2));
    let known = HostFile::parse(&"web1".parse().unwrap(), &text).unwrap();
    let index = Index::new(vec![known], Vec::new(), Vec::new(), [key(3)]);
    let import = take(&format!("web1 {}\nweb1 {}\n", key(2), key(3)), &index);
    let said: Vec<&str> = import.left.iter().map(|left| left.why.as_str()).collect();
    assert_eq!(
        said,
        [
            "web1 had this key until 2026-02-02, when it was retired: the line is out of date",
            "the key is revoked",
        ]
    );
}

#[test]
fn line_of_another_port_of_an_address_is_of_another_host() {
    let name = |name: &str| name.parse::<Name>().unwrap();
    let text = format!("id web1\naddr 127.0.0.1 port=42501\npin {} from=console 2026-01-01\n", key(1));
    let index = Index::new(vec![HostFile::parse(&name("web1"), &text).unwrap()], Vec::new(), Vec::new(), []);
    let line = |port: u16, seed: u8| format!("[127.0.0.1]:{port} {}\n", key(seed));
    let lines = line(42501, 1) + &line(42502, 2) + &line(42503, 3) + &format!("127.0.0.1 {}\n", key(4));
    let called = |id: &str, port: u16| Called { name: name(id), place: name(&format!("[127.0.0.1]:{port}")) };
    let called = [called("web1", 42501), called("web2", 42502)];
    let import = import(&KnownHosts::parse(&lines), &[], &called, &index, today());
    assert_eq!(import.left, vec![]);
    let took: Vec<(&str, bool)> =
        import.hosts.iter().map(|host| (host.name().as_str(), host.pin(&key(1)).is_some())).collect();
    assert_eq!(took, [("127.0.0.1", false), ("[127.0.0.1]:42503", false), ("web2", false)]);
    assert!(import.hosts.iter().all(|host| host.pins().count() == 1));
    assert_eq!(import.known, 1, "the key of web1 was known, and where it is");
    // On the port of web1 another key counts as a key of web1.
    let import = take(&line(42501, 9), &index);
    assert!(import.left[0].why.starts_with("web1 has another ssh-ed25519 pinned"), "{:?}", import.left);
}
