//! What variables of the environment do to a configuration.

use super::*;

#[test]
fn a_value_may_come_from_a_file_that_a_variable_names() {
    let text = "[listener.web]\nbind = \":80\"\npool = \"app\"\n[pool.app]\nbackends = [\"${BACKEND}\"]\n";
    let (bind, backend) = ("/bind", "/backend");
    let loaded = good(text, &[("PENSTOCK_LISTENER_WEB_BIND_FILE", bind), ("BACKEND_FILE", backend)]);
    assert_eq!(loaded.config.listeners[0].binds, [BindAddress::AnyIp(8080)]);
    assert_eq!(loaded.config.pools[0].backends[0].address.to_string(), "10.0.0.11:8000");
    let files: Vec<_> = loaded.config.variable_files.iter().map(|file| &*file.variable).collect();
    assert_eq!(files, ["PENSTOCK_LISTENER_WEB_BIND_FILE", "BACKEND_FILE"]);
    assert!(loaded.print().contains("# environment PENSTOCK_LISTENER_WEB_BIND_FILE"), "{}", loaded.print());
    // A key whose own name ends so is that key.
    let tls = "[listener.web]\nbind = \":443\"\npool = \"app\"\ntls = { certificates = \"/c\" }\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n";
    let key = good(tls, &[("PENSTOCK_LISTENER_WEB_TLS_KEY_PASSPHRASE_FILE", "/run/none")]).config;
    let passphrase = key.listeners[0].tls.as_ref().unwrap().key_passphrase_file.clone();
    assert_eq!((passphrase, key.variable_files.len()), (Some("/run/none".into()), 0));

    for (path, why) in [
        ("/binary", "which is not UTF-8"),
        ("/long", "which is longer than 64 KiB"),
        ("/gone", "which cannot be read: entity not found"),
        ("relative", "its path must be absolute"),
    ] {
        let faults =
            bad(text, &[("PENSTOCK_LISTENER_WEB_BIND_FILE", path), ("BACKEND_FILE", backend)]).render();
        assert!(
            faults.contains("environment PENSTOCK_LISTENER_WEB_BIND_FILE: names ") && faults.contains(why),
            "{faults}"
        );
        let faults = bad(text, &[("BACKEND_FILE", path)]).render();
        assert!(
            faults.contains("the environment variable BACKEND_FILE names ") && faults.contains(why),
            "{faults}"
        );
    }
    let both = [
        ("PENSTOCK_LISTENER_WEB_BIND_FILE", bind),
        ("PENSTOCK_LISTENER_WEB_BIND", ":1"),
        ("BACKEND", "10.0.0.1:1"),
    ];
    let faults = bad(text, &both).render();
    assert!(faults.contains("and PENSTOCK_LISTENER_WEB_BIND are both set"), "{faults}");
    // A variable with another meaning is no file while the one that is asked for has a value or a default.
    let config =
        good(&text.replace("${BACKEND}", "${BACKEND:-10.0.0.9:1}"), &[("BACKEND_FILE", "/gone")]).config;
    assert_eq!(config.pools[0].backends[0].address.to_string(), "10.0.0.9:1");
}

#[test]
fn a_variable_changes_a_route_by_its_number() {
    let text = "[listener.web]\nbind = \":80\"\npool = \"app\"\nroute = [{ path = \"/a\", pool = \"app\" }]\n\
                [listener.api]\nbind = \":81\"\npool = \"app\"\n[[listener.api.route]]\npath = \"/a\"\npool = \"app\"\n\
                [[listener.api.route]]\npath = \"/b\"\npool = \"app\"\n\
                [pool.app]\nbackends = [\"10.0.0.1:80\"]\n[pool.other]\nbackends = [\"10.0.0.2:80\"]\n";
    let pairs =
        [("PENSTOCK_LISTENER_API_ROUTE_2_POOL", "other"), ("PENSTOCK_LISTENER_WEB_ROUTE_1_PATH", "/new")];
    let loaded = good(text, &pairs);
    let Protocol::Http(api) = &loaded.config.listeners[1].protocol else { panic!("http") };
    let pools: Vec<_> = api.routes.iter().map(|route| route.action.clone()).collect();
    assert_eq!(pools, [Action::Pool(PoolId(0)), Action::Pool(PoolId(1))]);
    assert!(loaded.print().contains("/new"), "{}", loaded.print());
    // A route that is not in the file is no key.
    for name in [
        "PENSTOCK_LISTENER_API_ROUTE_3_POOL",
        "PENSTOCK_LISTENER_API_ROUTE_0_POOL",
        "PENSTOCK_LISTENER_API_ROUTE_POOL",
    ] {
        assert_eq!(good(text, &[(name, "other")]).unknown_variables, [name]);
    }
}

#[test]
fn the_environment_lies_over_the_file_and_takes_the_type_of_the_key() {
    let loaded = good(
        DESIGN,
        &[
            ("PENSTOCK_PROCESS_WORKERS", "4"),
            ("PENSTOCK_LISTENER_WEB_BIND", ":8080"),
            ("PENSTOCK_LISTENER_WEB_REDIRECT_TO_HTTPS", "8443"),
            ("PENSTOCK_LISTENER_SECURE_TIMEOUTS_HEAD", "3s"),
            ("PENSTOCK_LISTENER_SECURE_BIND", ":8443, :9443"),
            ("PENSTOCK_POOL_APP_BACKENDS", "10.0.0.1:80,unix:/run/x.sock"),
            ("PENSTOCK_POOL_APP_HEALTH_INTERVAL", "7s"),
            ("PENSTOCK_ADMIN_BIND", "127.0.0.1:9999"),
            ("PENSTOCK_LOG", "debug"),
            ("PENSTOCK_CONFIG", "/etc/penstock.toml"),
            ("UNRELATED", "x"),
        ],
    );
    let config = loaded.config;
    assert!(matches!(config.process.workers, Workers::Count(count) if count.get() == 4));
    assert_eq!(config.listeners[0].binds, [BindAddress::AnyIp(8080)]);
    assert_eq!(config.listeners[1].binds, [BindAddress::AnyIp(8443), BindAddress::AnyIp(9443)]);
    let Protocol::Http(http) = &config.listeners[0].protocol else { panic!("http") };
    assert_eq!(http.redirect_to_https, RedirectToHttps::Port(8443));
    let Protocol::Http(http) = &config.listeners[1].protocol else { panic!("http") };
    assert_eq!(http.timeouts.head, Duration::from_secs(3));
    assert_eq!(config.pools[0].backends.len(), 2);
    assert_eq!(config.pools[0].health.as_ref().unwrap().rule.interval, Duration::from_secs(7));
}

#[test]
fn an_override_may_create_a_section_that_the_file_does_not_have() {
    let text = "[listener.a]\nbind = \":80\"\npool = \"p\"\n[pool.p]\nbackends = [\"10.0.0.1:80\"]\n";
    let loaded = good(
        text,
        &[("PENSTOCK_CONTROL_SOCKET", "/run/c.sock"), ("PENSTOCK_LISTENER_A_TLS_CERTIFICATES", "/c")],
    );
    assert_eq!(loaded.config.control.unwrap().socket.to_str(), Some("/run/c.sock"));
    assert!(loaded.config.listeners[0].tls.is_some());
}

#[test]
fn variables_inside_texts_follow_the_shell() {
    let text = "[listener.a]\nbind = \":${A:-81}\"\nmax-connections = \"${N}\"\npool = \"p\"\n[pool.p]\nbackends = [\"${H}:${P:-80}\"]\n";
    let loaded = good(text, &[("A", ""), ("N", "12"), ("H", "10.0.0.9"), ("P", "8000")]);
    assert_eq!(loaded.config.listeners[0].binds, [BindAddress::AnyIp(81)], "empty counts as absent for :-");
    assert_eq!(loaded.config.listeners[0].max_connections, Some(12));
    assert_eq!(loaded.config.pools[0].backends[0].address.to_string(), "10.0.0.9:8000");
}

#[test]
fn the_variables_of_a_kubernetes_service_are_no_keys_and_others_like_them_are_warned_of() {
    let ours = [
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_HTTP",
        "PORT",
        "PORT_80_TCP",
        "PORT_80_TCP_ADDR",
        "PORT_80_TCP_PORT",
        "PORT_80_TCP_PROTO",
    ];
    let ours: Vec<_> = ours.iter().map(|rest| format!("PENSTOCK_{rest}")).collect();
    let pairs: Vec<_> = ours.iter().map(|name| (name.as_str(), "tcp://10.96.0.7:80")).collect();
    assert!(good(DESIGN, &pairs).warnings.is_empty());
    for rest in
        ["SERVICE", "SERVICE_HOSTS", "SERVICE_PORTS", "PORTS", "PORT_80", "PORT_X_TCP", "PORT_80_TCPX"]
    {
        let rendered = good(DESIGN, &[(&format!("PENSTOCK_{rest}"), "x")]).warnings.render();
        assert!(rendered.contains("names no key"), "{rest}: {rendered}");
    }
}

#[test]
fn variables_of_other_commands_and_of_tests_are_known() {
    for name in ["CONFIG", "LOG", "WATCHER", "REFUSAL_MARK", "SEED", "TEST_WITHOUT_ROOT"] {
        let loaded = good(DESIGN, &[(&format!("PENSTOCK_{name}"), "1")]);
        assert!(loaded.warnings.is_empty(), "{name}: {}", loaded.warnings.render());
    }
}

#[test]
fn a_thousand_unknown_variables_hide_no_fault_and_get_few_warnings() {
    let names: Vec<_> = (0..1000).map(|number| format!("PENSTOCK_CI_{number}")).collect();
    let pairs: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
    let loaded = good(DESIGN, &pairs);
    assert_eq!((loaded.warnings.len(), loaded.unknown_variables.len()), (11, 1000));
    assert!(loaded.warnings.render().contains("990 more variables"), "{}", loaded.warnings.render());
    let faults = bad("[listener.web]\nbind = \":80\"\npool = \"ap\"\n", &pairs);
    assert!(faults.render().contains("ap"), "{}", faults.render());
}
