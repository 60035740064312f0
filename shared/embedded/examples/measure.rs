//! temporary
use aws_sdk_dynamodb::types::*;
use ledgerline_embedded::{Embedded, Options};
use std::sync::Arc;
use std::sync::atomic::*;
use std::time::Instant;
#[tokio::main]
async fn main() {
    let direct = std::env::args().nth(1);
    let dir = tempfile::tempdir().unwrap();
    let e = Embedded::start(Options { data: Some(dir.path().into()), ..Options::default() }).await.unwrap();
    let is_direct = direct.is_some();
    let ep = if is_direct {
        let db = dynoxide::Database::new(dir.path().join("d.sqlite").to_str().unwrap()).unwrap();
        db.enable_bulk_loading().unwrap();
        db.disable_bulk_loading().unwrap();
        let l = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        l.set_nonblocking(true).unwrap();
        let a = l.local_addr().unwrap();
        std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async move {
                dynoxide::server::serve_on(tokio::net::TcpListener::from_std(l).unwrap(), db).await
            })
        });
        format!("http://{a}")
    } else {
        e.endpoint()
    };
    let conf = aws_config::defaults(aws_config::BehaviorVersion::latest())
        .endpoint_url(ep)
        .region("us-east-1")
        .credentials_provider(aws_sdk_dynamodb::config::Credentials::new("a", "b", None, None, "t"))
        .load()
        .await;
    let d = aws_sdk_dynamodb::Client::new(&conf);
    let s = |n: &str| {
        AttributeDefinition::builder()
            .attribute_name(n)
            .attribute_type(ScalarAttributeType::S)
            .build()
            .unwrap()
    };
    let k = |n: &str, t: KeyType| KeySchemaElement::builder().attribute_name(n).key_type(t).build().unwrap();
    let mut c = d
        .create_table()
        .table_name("events")
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(s("pk"))
        .attribute_definitions(s("sk"))
        .key_schema(k("pk", KeyType::Hash))
        .key_schema(k("sk", KeyType::Range));
    for i in 1..=7 {
        let (p, q) = (format!("g{i}pk"), format!("g{i}sk"));
        c = c.attribute_definitions(s(&p)).attribute_definitions(s(&q)).global_secondary_indexes(
            GlobalSecondaryIndex::builder()
                .index_name(format!("gsi{i}"))
                .key_schema(k(&p, KeyType::Hash))
                .key_schema(k(&q, KeyType::Range))
                .projection(Projection::builder().projection_type(ProjectionType::All).build())
                .build()
                .unwrap(),
        );
    }
    c.send().await.unwrap();
    let n = Arc::new(AtomicU64::new(0));
    let total = 8000u64;
    let start = Instant::now();
    let mut js = vec![];
    for _ in 0..16 {
        let (d, n) = (d.clone(), n.clone());
        js.push(tokio::spawn(async move {
            loop {
                let i = n.fetch_add(1, Ordering::Relaxed);
                if i >= total {
                    break;
                }
                let a = |s: String| AttributeValue::S(s);
                let mut p = d
                    .put_item()
                    .table_name("events")
                    .item("pk", a(format!("t#{}", i % 50)))
                    .item("sk", a(format!("{i:010}")))
                    .item("data", a("x".repeat(300)))
                    .condition_expression("attribute_not_exists(pk)");
                for g in 1..=7 {
                    p = p
                        .item(format!("g{g}pk"), a(format!("v{}", i % (g * 10))))
                        .item(format!("g{g}sk"), a(format!("{i:010}")));
                }
                p.send().await.unwrap();
            }
        }));
    }
    for j in js {
        j.await.unwrap();
    }
    println!("puts/s {:.0}", total as f64 / start.elapsed().as_secs_f64());
    if is_direct {
        return;
    }
    let q = aws_sdk_sqs::Client::new(&conf);
    let url = q.create_queue().queue_name("q").send().await.unwrap().queue_url.unwrap();
    let n = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut js = vec![];
    for _ in 0..16 {
        let (q, n, url) = (q.clone(), n.clone(), url.clone());
        js.push(tokio::spawn(async move {
            while n.fetch_add(1, Ordering::Relaxed) < 20000 {
                q.send_message()
                    .queue_url(&url)
                    .message_body("x".repeat(500))
                    .message_group_id("g")
                    .send()
                    .await
                    .unwrap();
            }
        }));
    }
    for j in js {
        j.await.unwrap();
    }
    println!("sends/s {:.0}", 20000.0 / start.elapsed().as_secs_f64());
    let start = Instant::now();
    let mut js = vec![];
    let done = Arc::new(AtomicU64::new(0));
    for _ in 0..16 {
        let (q, done, url) = (q.clone(), done.clone(), url.clone());
        js.push(tokio::spawn(async move {
            loop {
                let m = q
                    .receive_message()
                    .queue_url(&url)
                    .max_number_of_messages(10)
                    .send()
                    .await
                    .unwrap()
                    .messages
                    .unwrap_or_default();
                if m.is_empty() {
                    break;
                }
                done.fetch_add(m.len() as u64, Ordering::Relaxed);
                let mut b = q.delete_message_batch().queue_url(&url);
                for (i, m) in m.iter().enumerate() {
                    b = b.entries(
                        aws_sdk_sqs::types::DeleteMessageBatchRequestEntry::builder()
                            .id(i.to_string())
                            .receipt_handle(m.receipt_handle().unwrap())
                            .build()
                            .unwrap(),
                    );
                }
                b.send().await.unwrap();
            }
        }));
    }
    for j in js {
        j.await.unwrap();
    }
    println!(
        "received+deleted/s {:.0} ({})",
        done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64(),
        done.load(Ordering::Relaxed)
    );
    e.stop().await;
}
