//! The whole of a program that executes workflows: on Lambda, or as a process (`--help`).

#[tokio::main]
async fn main() -> Result<(), ledgerline_runner::ServeError> {
    ledgerline_runner::serve(example_workflows::workflows()).await
}
