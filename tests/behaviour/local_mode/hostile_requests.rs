//! What a web page could make a browser send to the ports of local mode.

use std::{collections::BTreeSet, fs, net::SocketAddr, time::Duration};

use ledgerline_ledger::Clients;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use ledgerline_test_support::World;

use crate::binary::start;

/// The answer to a request as it is written here; nothing if none comes.
async fn answer(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(2), stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn delete_table(headers: &str) -> String {
    let body = r#"{"TableName":"events-local"}"#;
    format!(
        "POST / HTTP/1.1\r\n{headers}Connection: close\r\nX-Amz-Target: DynamoDB_20120810.DeleteTable\r\n\
         Content-Type: application/x-amz-json-1.0\r\nX-Amz-Date: 20260101T000000Z\r\nAuthorization: AWS4-HMAC-SHA256 \
         Credential=a/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=made-up\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ports_refuse_other_hosts_and_pages_of_other_addresses() {
    let world = World::start().await;
    let key = &world.local.state.api_key;
    for url in [&world.local.state.aws_endpoint, &world.local.state.api_url] {
        let address = url.strip_prefix("http://").unwrap();
        for headers in [
            "Host: evil.com\r\n".to_owned(),
            String::new(),
            format!("Host: {address}\r\nOrigin: http://evil.com\r\n"),
            format!("Host: {address}\r\nOrigin: null\r\n"),
            format!("Host: {address}\r\nSec-Fetch-Site: cross-site\r\n"),
        ] {
            let listed = format!(
                "GET /api/tasks HTTP/1.1\r\n{headers}Authorization: Bearer {key}\r\nConnection: close\r\n\r\n"
            );
            for request in [listed, delete_table(&headers)] {
                let answer = answer(address, &request).await;
                assert!(answer.starts_with("HTTP/1.1 403"), "{headers:?}: {answer}");
                assert!(answer.contains("\"detail\":\""), "{answer}");
            }
        }
    }
    let api = world.local.state.api_url.strip_prefix("http://").unwrap();
    for host in [api.to_owned(), api.replace("127.0.0.1", "localhost"), api.replace("127.0.0.1", "[::1]")] {
        let request = format!("GET /api/health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert!(answer(api, &request).await.starts_with("HTTP/1.1 200"), "{host}");
    }
    assert!(world.rows().await.is_empty(), "the table is there");
    world.local.stop().await;
}

/// The ports on which a process listens.
#[cfg(target_os = "linux")]
fn listening(pid: u32) -> BTreeSet<SocketAddr> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let sockets: BTreeSet<String> = links
        .filter_map(|link| fs::read_link(link.ok()?.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (ip, port) = fields.get(1)?.split_once(':')?;
        let ip = u32::from_str_radix(ip, 16).ok()?.to_ne_bytes();
        let address = SocketAddr::from((ip, u16::from_str_radix(port, 16).ok()?));
        (fields.get(3) == Some(&"0A") && sockets.contains(*fields.get(9)?)).then_some(address)
    };
    table.lines().filter_map(row).collect()
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn no_port_accepts_an_invented_signature_under_another_host() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, state) = start(folder.path(), &[]).await;
    let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
    // Such a request opens the way to the inner store.
    clients.dynamo.list_tables().send().await.unwrap();
    let ports = listening(child.0.id());
    assert!(ports.len() >= 2, "{ports:?}");
    let mut answers = Vec::new();
    for port in ports {
        answers.push((port, answer(&port.to_string(), &delete_table("Host: evil.com\r\n")).await));
    }
    let tables = clients.dynamo.list_tables().send().await.unwrap();
    assert!(tables.table_names().contains(&"events-local".to_owned()), "{answers:?}");
    for (port, answer) in answers {
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 403"), "{port}: {answer}");
    }
    child.kill();
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_the_data_folder_are_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let local = ledgerline_local::Local::start(ledgerline_local::LocalOptions::new(&data)).await.unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    for file in fs::read_dir(&data).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    local.stop().await;
}
