//! Writes log lines to standard error without ever blocking the process: a thread of its own writes them from a bounded queue.
//! If the reader is gone or does not read, lines that do not fit into the queue are dropped and counted.

use std::{
    io::{self, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use tracing_subscriber::fmt::MakeWriter;

/// The most lines that wait: some megabytes, with the longest lines that are logged.
const MAX_WAITING: usize = 4_096;
/// How long an ending process waits until the lines are written.
const FLUSH_WITHIN: Duration = Duration::from_millis(500);

/// Puts lines into the queue. Cheap to clone; never blocks, never fails.
#[derive(Clone)]
pub(crate) struct LogWriter {
    lines: SyncSender<Job>,
    dropped: Arc<AtomicU64>,
}

enum Job {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

impl LogWriter {
    /// Starts the thread that writes to `out`.
    pub(crate) fn to(out: impl Write + Send + 'static) -> Self {
        let (lines, waiting) = sync_channel(MAX_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let thread = std::thread::Builder::new().name("log".into());
        let counted = dropped.clone();
        if thread.spawn(move || write_all(out, &waiting, &counted)).is_err() {
            // Without the thread every line is dropped: work goes on without a log.
            dropped.fetch_add(1, Ordering::Relaxed);
        }
        Self { lines, dropped }
    }

    /// How many lines were dropped that the log has not reported.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits a moment until everything logged so far is written; `false` if it is not.
    pub(crate) fn flush(&self) -> bool {
        let (done, written) = sync_channel(1);
        self.lines.try_send(Job::Flush(done)).is_ok() && written.recv_timeout(FLUSH_WITHIN).is_ok()
    }
}

/// Writes lines until all senders are dropped. A line that cannot be written is dropped: after `EPIPE` every line, on a full
/// disk every line until there is room.
fn write_all(mut out: impl Write, waiting: &Receiver<Job>, dropped: &AtomicU64) {
    for job in waiting {
        let line = match job {
            Job::Line(line) => line,
            Job::Flush(done) => {
                let _ = out.flush();
                let _ = done.try_send(());
                continue;
            }
        };
        let lost = dropped.swap(0, Ordering::Relaxed);
        let told = match lost {
            0 => Ok(()),
            lost => writeln!(out, "{lost} log lines were dropped: they could not be written in time"),
        };
        if told.is_err() {
            dropped.fetch_add(lost + 1, Ordering::Relaxed);
        } else if out.write_all(&line).is_err() {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One event of the log, sent as a whole when it is complete.
pub(crate) struct Line<'a> {
    writer: &'a LogWriter,
    bytes: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let line = std::mem::take(&mut self.bytes);
        if !line.is_empty() && self.writer.lines.try_send(Job::Line(line)).is_err() {
            self.writer.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { writer: self, bytes: Vec::new() }
    }
}

/// Prints lines of local mode on standard output, and drops lines if the reader is gone or does not read.
pub(crate) struct Banner {
    writer: OnceLock<LogWriter>,
    is_read: AtomicBool,
}

impl Banner {
    pub(crate) const fn new() -> Self {
        Self { writer: OnceLock::new(), is_read: AtomicBool::new(true) }
    }

    /// Prints a line. As long as the reader reads, the line is written when this returns, in order with other output.
    pub(crate) fn line(&self, text: &str) {
        let writer = self.writer.get_or_init(|| LogWriter::to(io::stdout()));
        let _ = writeln!(writer.make_writer(), "{text}");
        if self.is_read.load(Ordering::Relaxed) {
            self.is_read.store(writer.flush(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    /// A pipe whose reader reads when the test says so.
    #[derive(Clone, Default)]
    struct Pipe(Arc<(Mutex<Content>, Condvar)>);

    #[derive(Default)]
    struct Content {
        is_open: bool,
        /// Whether the writer has begun to write.
        is_written_to: bool,
        read: Vec<u8>,
    }

    impl Pipe {
        fn open(&self) {
            self.0.0.lock().unwrap().is_open = true;
            self.0.1.notify_all();
        }

        fn wait_for_writer(&self) {
            drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |pipe| !pipe.is_written_to).unwrap());
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.0.lock().unwrap().is_written_to = true;
            self.0.1.notify_all();
            let mut pipe = self.0.1.wait_while(self.0.0.lock().unwrap(), |pipe| !pipe.is_open).unwrap();
            pipe.read.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log(writer: &LogWriter, text: &str) {
        writer.make_writer().write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn a_reader_that_does_not_read_costs_lines_and_hears_how_many() {
        let pipe = Pipe::default();
        let writer = LogWriter::to(pipe.clone());
        log(&writer, "line 0\n");
        // The thread holds the first line, so the queue is empty.
        pipe.wait_for_writer();
        let lines = 1 + MAX_WAITING + 500;
        (1..lines).for_each(|number| log(&writer, &format!("line {number}\n")));
        assert_eq!(writer.dropped(), 500);
        pipe.open();
        while writer.dropped() > 0 {
            log(&writer, "after\n");
            std::thread::yield_now();
        }
        writer.flush();
        let written = String::from_utf8(pipe.0.0.lock().unwrap().read.clone()).unwrap();
        assert!(written.starts_with("line 0\n") && written.contains("log lines were dropped"), "{written}");
        let told = written.lines().filter_map(|line| {
            line.strip_suffix(" log lines were dropped: they could not be written in time")
        });
        let told: u64 = told.map(|count| count.parse::<u64>().unwrap()).sum();
        let kept = written.lines().filter(|line| line.starts_with("line ")).count();
        assert!(told + kept as u64 >= lines as u64, "{told} told and {kept} kept of {lines}");
    }

    #[test]
    fn a_reader_that_is_gone_costs_lines_and_nothing_else() {
        let writer = LogWriter::to(Broken);
        (0..10).for_each(|_| log(&writer, "line\n"));
        writer.flush();
        assert_eq!(writer.dropped(), 10);
    }
}
