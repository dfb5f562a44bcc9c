// What a crashing process does before it dies: it notifies its parent and waits until that has read the native stack.
// The handler uses only what is safe in a signal handler: stores, kill, nanosleep, sigaction.
#include <nanobind/nanobind.h>

#ifdef __unix__
#include <signal.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include <cstdint>

namespace nb = nanobind;

namespace roundoff {

static const int fatal_signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE};
static const int num_fatal = sizeof(fatal_signals) / sizeof(fatal_signals[0]);

// The first words of the page that parent and child share; watch/process/ipc.py has the same.
struct Page {
  volatile int32_t signal;
  volatile int32_t thread;
  volatile int32_t is_answered;
};

static Page* page = nullptr;
static pid_t owner, parent;
static int wake_signal;
static double patience;
static struct sigaction previous[num_fatal];
static bool is_installed = false;

static double seconds() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

static int32_t thread_id() {
#ifdef __linux__
  return static_cast<int32_t>(syscall(SYS_gettid));
#else
  return 0;
#endif
}

static void on_crash(int number) {
  // A forked process shares the page, but no parent waits for it. A second thread that crashes waits with the first.
  if (getpid() == owner && getppid() == parent) {
    if (!page->signal) {
      page->thread = thread_id();
      page->signal = number;
      kill(parent, wake_signal);
    }
    const double end = seconds() + patience;
    const struct timespec pause = {0, 5000000};
    while (!page->is_answered && seconds() < end && getppid() == parent) nanosleep(&pause, nullptr);
  }
  for (int i = 0; i < num_fatal; ++i)
    if (fatal_signals[i] == number) sigaction(number, &previous[i], nullptr);
  raise(number);  // blocked until this handler returns
}

static void install(nb::object memory, uintptr_t address, int parent_id, int wake, double max_seconds) {
  memory.inc_ref();  // the page must outlive Python itself: processes crash while they end
  page = reinterpret_cast<Page*>(address);
  owner = getpid();
  parent = parent_id;
  wake_signal = wake;
  patience = max_seconds;
  if (is_installed) return;
  struct sigaction action = {};
  action.sa_handler = on_crash;
  action.sa_flags = SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < num_fatal; ++i) sigaction(fatal_signals[i], &action, &previous[i]);
  is_installed = true;
}

static void remove() {
  if (!is_installed) return;
  for (int i = 0; i < num_fatal; ++i) {
    struct sigaction current;
    sigaction(fatal_signals[i], nullptr, &current);
    if (current.sa_handler == on_crash) sigaction(fatal_signals[i], &previous[i], nullptr);
  }
  is_installed = false;
}

// Room for several handlers inside one another, also where the stack itself has overflowed.
static void use_signal_stack() {
  alignas(64) static char memory[256 * 1024];
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = sizeof(memory);
  sigaltstack(&stack, nullptr);
}

void bind_crash(nb::module_& m) {
  m.def("install_crash_handler", &install, "Wait for process `parent_id` to look at this one before a crash ends it.");
  m.def("remove_crash_handler", &remove, "Put back the handlers that were there before.");
  m.def("use_signal_stack", &use_signal_stack, "Give this thread a large stack for signal handlers.");
}

}  // namespace roundoff

#else

namespace roundoff {
void bind_crash(nanobind::module_&) {}
}  // namespace roundoff

#endif
