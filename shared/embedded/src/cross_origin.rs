//! Refuses requests that a web page may have sent. A page of any site can make a browser send requests to loopback ports, also under
//! the name of its own host if that resolves to 127.0.0.1 (DNS rebinding). So a request must name a loopback host, and a request of a
//! browser must come from a page of the same port.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, Uri, header, uri::Authority};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Why a request is refused, if it is.
pub(crate) fn refusal(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next().map(|host| host.to_str().unwrap_or_default()), hosts.next()) {
        (Some(host), None) => host,
        (Some(_), Some(_)) => return Some("the request has more than one Host".into()),
        (None, _) => {
            return Some("the request has no Host; this port answers to localhost and 127.0.0.1".into());
        }
    };
    let named = uri.authority().map(Authority::as_str).into_iter().chain([host]);
    for name in named {
        if !is_loopback(name) {
            return Some(format!("this port answers to localhost and 127.0.0.1, not to the host `{name}`"));
        }
    }
    for origin in headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        if origin.strip_prefix("http://") != Some(host) {
            return Some(format!("a web page of `{origin}` sent this request; only pages of this port may"));
        }
    }
    match headers.get(FETCH_SITE).map(|site| site.to_str().unwrap_or_default()) {
        None | Some("same-origin" | "none") => None,
        Some(site) => Some(format!(
            "a web page of another address sent this request (Sec-Fetch-Site: {site}); only pages of this port may"
        )),
    }
}

/// `localhost`, `<bucket>.localhost`, or a loopback address, with or without a port.
fn is_loopback(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    if authority.as_str().contains('@') {
        return false;
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    host == "localhost"
        || host.ends_with(".localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(headers: &[(&'static str, &str)]) -> Option<String> {
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        refusal(&Uri::from_static("/"), &headers.collect())
    }

    #[test]
    fn loopback_names_pass_and_every_other_host_is_refused() {
        for host in ["127.0.0.1:4566", "localhost", "LOCALHOST:1", "[::1]:8787", "bucket.localhost:4566"] {
            assert_eq!(refused(&[("host", host)]), None, "{host}");
        }
        for host in [
            "evil.com",
            "evil.com:4566",
            "localhost.evil.com",
            "127.0.0.1.evil.com",
            "192.168.1.7",
            "",
            "a@localhost",
            "0.0.0.0",
        ] {
            assert!(refused(&[("host", host)]).is_some(), "{host}");
        }
        assert!(refused(&[]).unwrap().contains("no Host"));
        let absolute = refusal(
            &Uri::from_static("http://evil.com/"),
            &[(header::HOST, "localhost".parse().unwrap())].into_iter().collect(),
        );
        assert!(absolute.unwrap().contains("`evil.com`"));
    }

    #[test]
    fn a_browser_may_ask_only_from_a_page_of_the_same_port() {
        let host = ("host", "localhost:8787");
        assert_eq!(refused(&[host, ("origin", "http://localhost:8787")]), None);
        for origin in ["http://evil.com", "null", "http://localhost:3000", "https://localhost:8787"] {
            assert!(refused(&[host, ("origin", origin)]).unwrap().contains(origin), "{origin}");
        }
        assert_eq!(refused(&[host, ("sec-fetch-site", "same-origin")]), None);
        assert_eq!(refused(&[host, ("sec-fetch-site", "none")]), None);
        for site in ["cross-site", "same-site"] {
            assert!(refused(&[host, ("sec-fetch-site", site)]).unwrap().contains(site));
        }
    }
}
