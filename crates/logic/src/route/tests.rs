use super::*;

struct Fields(Vec<(&'static str, &'static [u8])>);

impl HeaderLookup for Fields {
    fn header(&self, lower_case_name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(name, _)| *name == lower_case_name).map(|(_, value)| *value)
    }
}

fn route(host: &str, path: &str, pool: usize) -> Route {
    Route {
        host: host.parse().unwrap(),
        path: path.parse().unwrap(),
        methods: Vec::new(),
        headers: Vec::new(),
        acl: None,
        action: Action::Pool(PoolId(pool)),
        edits: HeaderEdits::default(),
        bandwidth: None,
    }
}

/// Pool of a GET request, or the decision as text.
fn decide(table: &RouteTable, host: &str, path: &str) -> Result<usize, String> {
    decide_with(table, host, path, "GET", &Fields(Vec::new()))
}

fn decide_with(
    table: &RouteTable,
    host: &str,
    path: &str,
    method: &str,
    headers: &dyn HeaderLookup,
) -> Result<usize, String> {
    match table.decide(&Facts { host, path, method, headers }) {
        Decision::Route(Route { action: Action::Pool(pool), .. }) => Ok(pool.0),
        Decision::Fallback(pool) => Ok(pool.0),
        Decision::Route(_) => Err("redirect".into()),
        Decision::NoRoute => Err("no route".into()),
        Decision::Ambiguous(reason) => Err(reason.to_string()),
    }
}

#[test]
fn the_most_specific_host_decides_whatever_the_order_in_the_file() {
    let routes = [
        route("*", "/", 0),
        route("*.example.com", "/", 1),
        route("*.a.example.com", "/", 2),
        route("x.a.example.com", "/", 3),
    ];
    let backwards = routes.iter().rev().cloned().collect();
    for table in [RouteTable::new(routes.to_vec(), None), RouteTable::new(backwards, None)] {
        assert_eq!(decide(&table, "x.a.example.com", "/"), Ok(3));
        assert_eq!(decide(&table, "y.a.example.com", "/"), Ok(2));
        assert_eq!(decide(&table, "z.x.a.example.com", "/"), Ok(2));
        assert_eq!(decide(&table, "a.example.com", "/"), Ok(1));
        assert_eq!(decide(&table, "example.com", "/"), Ok(0));
        assert_eq!(decide(&table, "badexample.com", "/"), Ok(0));
        assert_eq!(decide(&table, ".example.com", "/"), Ok(0));
        assert_eq!(decide(&table, "", "/"), Ok(0));
        assert_eq!(decide(&table, "x.a.example.com.", "/"), Ok(3), "a trailing dot names the same host");
    }
}

#[test]
fn a_host_whose_paths_do_not_match_falls_through_to_the_wider_hosts() {
    let routes = vec![route("a.test", "/api", 1), route("*.test", "/img", 2), route("*", "/", 3)];
    let table = RouteTable::new(routes, None);
    assert_eq!(decide(&table, "a.test", "/api/v1"), Ok(1));
    assert_eq!(decide(&table, "a.test", "/img/x.png"), Ok(2));
    assert_eq!(decide(&table, "a.test", "/"), Ok(3));
}

#[test]
fn the_longer_path_decides_and_ends_at_a_segment() {
    let routes = vec![route("*", "/api", 1), route("*", "/api/v2/", 2), route("*", "/", 0)];
    let table = RouteTable::new(routes, None);
    let expected = [
        ("/api", 1),
        ("/api/", 1),
        ("/api/x", 1),
        ("/apix", 0),
        ("/api/v2", 1),
        ("/api/v2/", 2),
        ("/api/v2/x", 2),
        ("//api//v2///x", 2),
        ("/%61pi/x", 1),
        ("/api%20x", 0),
        ("/API", 0),
        ("", 0),
        ("*", 0),
    ];
    for (path, pool) in expected {
        assert_eq!(decide(&table, "h", path), Ok(pool), "{path}");
    }
}

#[test]
fn conditions_decide_before_the_order_of_the_file() {
    let plain = route("*", "/", 0);
    let mut posts = route("*", "/", 1);
    posts.methods = vec!["POST".into(), "PUT".into()];
    let mut beta = route("*", "/", 2);
    let exact = HeaderMatch { name: "x-beta".into(), value: HeaderValueMatch::Exact("yes".into()) };
    beta.headers = vec![exact, HeaderMatch { name: "cookie".into(), value: HeaderValueMatch::Present }];
    let table = RouteTable::new(vec![plain, posts, beta], None);
    let none = Fields(Vec::new());
    let both = Fields(vec![("x-beta", b"yes"), ("cookie", b"")]);
    let other = Fields(vec![("x-beta", b"yes!"), ("cookie", b"")]);
    assert_eq!(decide_with(&table, "h", "/", "GET", &none), Ok(0));
    assert_eq!(decide_with(&table, "h", "/", "POST", &none), Ok(1));
    assert_eq!(decide_with(&table, "h", "/", "post", &none), Ok(0), "methods are case-sensitive");
    assert_eq!(decide_with(&table, "h", "/", "POST", &both), Ok(2), "two conditions beat one");
    assert_eq!(decide_with(&table, "h", "/", "PUT", &other), Ok(1));
}

#[test]
fn equal_routes_are_tried_in_the_order_of_the_file() {
    let table = RouteTable::new(vec![route("h", "/a", 1), route("h", "/a", 2)], None);
    assert_eq!(decide(&table, "h", "/a"), Ok(1));
}

#[test]
fn what_no_route_matches_goes_to_the_fallback_or_nowhere() {
    let routes = vec![route("a.test", "/", 1)];
    assert_eq!(decide(&RouteTable::new(routes.clone(), Some(PoolId(7))), "b.test", "/"), Ok(7));
    assert_eq!(decide(&RouteTable::new(routes, None), "b.test", "/"), Err("no route".into()));
    assert_eq!(decide(&RouteTable::new(Vec::new(), Some(PoolId(7))), "", "/../x"), Ok(7));
}

#[test]
fn a_parameter_of_a_segment_is_a_part_of_its_name() {
    let table =
        RouteTable::new(vec![route("*", "/admin", 1), route("*", "/a/b", 2), route("*", "/", 0)], None);
    let expected = [
        ("/admin", 1),
        ("/admin/", 1),
        ("/admin/;x", 1),
        ("/admin/x;y=1", 1),
        ("/admin;x", 0),
        ("/admin;x=1/users", 0),
        ("/admin;", 0),
        ("/a/b;c", 0),
        ("/a;b/b", 0),
    ];
    for (path, pool) in expected {
        assert_eq!(decide(&table, "a.test", path), Ok(pool), "{path}");
    }
}

#[test]
fn a_path_that_reads_two_ways_is_ambiguous_where_paths_decide() {
    let table = RouteTable::new(vec![route("*", "/admin", 1)], Some(PoolId(0)));
    let vectors = [
        ("/x/../admin", PathAmbiguity::DotSegment),
        ("/./admin", PathAmbiguity::DotSegment),
        ("/x/..", PathAmbiguity::DotSegment),
        ("/x/.", PathAmbiguity::DotSegment),
        ("/x/%2e%2E/admin", PathAmbiguity::DotSegment),
        ("/x/.%2e/admin", PathAmbiguity::DotSegment),
        ("/x/..;/admin", PathAmbiguity::DotSegment),
        ("/x/..;a=b/admin", PathAmbiguity::DotSegment),
        ("/x/..%3b/admin", PathAmbiguity::DotSegment),
        ("/x//../admin", PathAmbiguity::DotSegment),
        ("/%2fadmin", PathAmbiguity::EncodedSlash),
        ("/x%2Fadmin", PathAmbiguity::EncodedSlash),
        ("/x/..%2fadmin", PathAmbiguity::EncodedSlash),
        ("/x\\admin", PathAmbiguity::Backslash),
        ("/x%5cadmin", PathAmbiguity::Backslash),
        ("/x%5Cadmin", PathAmbiguity::Backslash),
        ("/admin%00", PathAmbiguity::Control),
        ("/admin%0d%0a", PathAmbiguity::Control),
        ("/admin%7f", PathAmbiguity::Control),
        ("/admin\u{1}", PathAmbiguity::Control),
        ("/admin%", PathAmbiguity::BrokenEncoding),
        ("/admin%4", PathAmbiguity::BrokenEncoding),
        ("/admin%4g", PathAmbiguity::BrokenEncoding),
        ("/%+1admin", PathAmbiguity::BrokenEncoding),
        ("/x/%c0%ae%c0%ae/admin", PathAmbiguity::Overlong),
        ("/x%C0%AFadmin", PathAmbiguity::Overlong),
        ("/x#/admin", PathAmbiguity::Delimiter),
    ];
    for (path, reason) in vectors {
        assert_eq!(decide(&table, "h", path), Err(reason.to_string()), "{path}");
    }
}

#[test]
fn odd_but_clear_paths_are_routed() {
    let table = RouteTable::new(vec![route("*", "/admin", 1)], Some(PoolId(0)));
    for path in
        ["/...", "/.well-known/x", "/x/..y", "/a;b=c", "/%E4%B8%AD", "/%252e%252e/admin", "/ä", "/a%3Fb"]
    {
        assert_eq!(decide(&table, "h", path), Ok(0), "{path}");
    }
    assert_eq!(decide(&table, "h", "/admin/%7Euser"), Ok(1));
}

#[test]
fn paths_are_not_judged_where_only_hosts_decide() {
    let table = RouteTable::new(vec![route("a.test", "/", 1)], Some(PoolId(0)));
    for path in ["/x/../y", "/%2f", "/%", "/a\\b"] {
        assert_eq!(decide(&table, "a.test", path), Ok(1), "{path}");
    }
}

#[test]
fn host_patterns_are_read_and_refused() {
    assert_eq!("*".parse(), Ok(HostPattern::Any));
    assert_eq!("WWW.Example.com".parse(), Ok(HostPattern::Exact("www.example.com".into())));
    assert_eq!("*.Example.com".parse(), Ok(HostPattern::Wildcard(".example.com".into())));
    assert_eq!("[2001:DB8::0:1]".parse(), Ok(HostPattern::Exact("[2001:db8::1]".into())));
    assert_eq!("192.0.2.1".parse(), Ok(HostPattern::Exact("192.0.2.1".into())));
    let error = |text: &str| text.parse::<HostPattern>().unwrap_err();
    assert_eq!(error(""), HostPatternError::Empty);
    assert_eq!(error("*."), HostPatternError::Empty);
    assert_eq!(error("a.test:80"), HostPatternError::Port);
    assert_eq!(error("::1"), HostPatternError::Port);
    assert_eq!(error("[x]"), HostPatternError::Character('['));
    for text in ["a.*.test", "*a.test", "*.*.test", "**"] {
        assert_eq!(error(text), HostPatternError::Star, "{text}");
    }
    for text in ["a..test", ".test", "test.", "*..test"] {
        assert_eq!(error(text), HostPatternError::EmptyLabel, "{text}");
    }
    assert_eq!(error("bücher.test"), HostPatternError::NotAscii);
    assert_eq!(error("a/b"), HostPatternError::Character('/'));
    assert_eq!(error("a b"), HostPatternError::Character(' '));
    assert_eq!(error(&"a".repeat(64)), HostPatternError::TooLong);
    for text in ["*", "a.test", "*.a.test"] {
        assert_eq!(text.parse::<HostPattern>().unwrap().to_string(), text);
    }
}

#[test]
fn path_prefixes_are_refused_when_they_could_not_match() {
    let error = |text: &str| text.parse::<PathPrefix>().unwrap_err();
    assert_eq!(error(""), PathPrefixError::NoSlash);
    assert_eq!(error("api"), PathPrefixError::NoSlash);
    assert_eq!(error("/a%20b"), PathPrefixError::Encoded);
    assert_eq!(error("/a?b"), PathPrefixError::Character('?'));
    assert_eq!(error("/a#b"), PathPrefixError::Character('#'));
    assert_eq!(error("/a b"), PathPrefixError::Character(' '));
    assert_eq!(error("/a\\b"), PathPrefixError::Character('\\'));
    assert_eq!(error("/a//b"), PathPrefixError::EmptySegment);
    for text in ["/.", "/a/../b", "/a/./b", "/a/..", "/..;x"] {
        assert_eq!(error(text), PathPrefixError::DotSegment, "{text}");
    }
}

#[test]
fn locations_take_the_request_and_stay_valid_field_values() {
    let expand = |template: &str, path: &str, query| {
        template.parse::<Location>().unwrap().expand("a.test", path, query)
    };
    assert_eq!(expand("https://{host}{path}{query}", "/x", Some("a=1")), "https://a.test/x?a=1");
    assert_eq!(expand("https://{host}{path}{query}", "/x", None), "https://a.test/x");
    assert_eq!(expand("/new", "/x", Some("a=1")), "/new");
    assert_eq!(expand("{path}", "/a\r\nb ä", None), "/a%0D%0Ab%20%C3%A4");
    assert_eq!(expand("https://{host}{path}", "/{host}", None), "https://a.test/{host}");
}

#[test]
fn a_redirect_to_the_path_never_leads_to_another_host() {
    let location: Location = "{path}{query}".parse().unwrap();
    for path in ["//evil.test", "/\\evil.test", "\\/evil.test", "///evil.test"] {
        assert_eq!(location.expand("a.test", path, None), "/evil.test", "{path}");
    }
}

#[test]
fn wrong_locations_are_refused() {
    let error = |text: &str| text.parse::<Location>().unwrap_err();
    assert_eq!(error(""), LocationError::Empty);
    assert_eq!(error("https://a.test/ x"), LocationError::Character(' '));
    assert_eq!(error("https://{hsot}/"), LocationError::Placeholder("hsot".into()));
    for text in ["/a{", "/a}", "/a{path", "/}{path}"] {
        assert_eq!(error(text), LocationError::Brace, "{text}");
    }
    assert_eq!(error("a.test"), LocationError::Beginning);
    assert_eq!(error("javascript:alert(1)"), LocationError::Beginning);
    assert_eq!(error("/{path}"), LocationError::SlashPath);
    assert_eq!(error("/{x}").to_string(), "unknown placeholder `{x}`: known are {host}, {path} and {query}");
}

#[test]
fn redirect_statuses_are_the_five_that_redirect() {
    for code in 0..=1000 {
        match RedirectStatus::try_from(code) {
            Ok(status) => assert_eq!(status.code(), code),
            Err(error) => assert_eq!(error, RedirectStatusError(code)),
        }
    }
    assert_eq!(RedirectStatus::try_from(308), Ok(RedirectStatus::PermanentRedirect));
    assert!(RedirectStatus::try_from(304).is_err());
}

#[test]
fn header_edits_cannot_change_framing_or_break_lines() {
    assert!(HeaderEdit::set("X-Frame-Options", "DENY").is_ok());
    assert!(HeaderEdit::set("Host", "app.internal").is_ok());
    assert_eq!(HeaderEdit::remove("HOST"), Err(HeaderEditError::Host));
    for name in ["Content-Length", "transfer-encoding", "CONNECTION", "Upgrade"] {
        assert_eq!(HeaderEdit::set(name, "x"), Err(HeaderEditError::Framing(name.into())));
        assert_eq!(HeaderEdit::remove(name), Err(HeaderEditError::Framing(name.into())));
    }
    for name in ["", "a b", "a:", "a\r\nb", "ä"] {
        assert_eq!(HeaderEdit::remove(name), Err(HeaderEditError::Name(name.into())), "{name:?}");
    }
    let control = HeaderEdit::set("X", "a\r\nSet-Cookie: b");
    assert_eq!(control, Err(HeaderEditError::Control { name: "X".into(), byte: b'\r' }));
    assert_eq!(HeaderEdit::set("X", " a"), Err(HeaderEditError::Space { name: "X".into() }));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        failure_persistence: None,
        ..proptest::prelude::ProptestConfig::with_cases(4_000)
    })]

    #[test]
    fn a_path_is_compared_in_one_form(rest in "(/|//|\\.|\\.\\.|%2[eEfF5]|%5[cC]|%3[bBfF]|%c[01]%80|;|[a-z]|[!-~]){0,16}") {
        let given = format!("/{rest}");
        let Ok(path) = path::comparable(&given) else { return Ok(()) };
        let text = std::str::from_utf8(path.as_bytes()).unwrap();
        let again = path::comparable(text).map(|again| again.as_bytes().to_vec());
        proptest::prop_assert_eq!(again, Ok(path.as_bytes().to_vec()), "{} became {}", given, text);
        proptest::prop_assert!(text.starts_with('/') && !text.contains("//"), "{} became {}", given, text);
        let plain = text.to_ascii_lowercase().replace("%3b", ";");
        let is_dots = |segment: &str| matches!(segment.split(';').next(), Some("." | ".."));
        proptest::prop_assert!(!plain.split('/').any(is_dots), "{} became {}", given, text);
        proptest::prop_assert!(!plain.contains("%2e") && !plain.contains("%2f") && !plain.contains("%5c"), "{}", text);
    }
}
