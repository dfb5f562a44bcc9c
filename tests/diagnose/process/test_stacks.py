from roundoff.diagnose.process.last_moment import (
    aten_op,
    collective,
    frames_in,
    native_frames,
    python_frames,
    users_frame,
)

PYTHON = """\
== hang: no progress for 60 s, 2026-01-01 00:00:00 +0000
Thread 0x00007f01 (most recent call first):
  File "/home/me/loader.py", line 7 in fetch

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/home/me/train.py", line 30 in main
Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/home/me/loader.py", line 8 in fetch

Current thread 0x00007f02 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/nn/functional.py", line 9 in linear
  File "/home/me/project/model.py", line 41 in forward
  File "/home/me/project/train.py", line 12 in <module>

Extension modules: torch._C (total: 1)
"""

NATIVE = """\
== crash: signal 11 in thread 102, 2026-01-01 00:00:00 +0000
Thread 2 (Thread 0x7f01 (LWP 101) "python"):
#0  __futex_wait (...) at ./nptl/futex.c:57
#1  0x00007f01 in at::_ops::add_Tensor::call(at::Tensor const&) () from /lib/libtorch_cpu.so
Thread 1 (Thread 0x7f02 (LWP 102) "python"):
#0  0x00007f11 in __GI___clock_nanosleep (...) at ../sysdeps/clock_nanosleep.c:48
#1  0x00007f12 in ?? () from /lib/_compiled.so
#2  <signal handler called>
#3  __pthread_kill_implementation (...) at ./nptl/pthread_kill.c:44
#4  0x00007f13 in __GI_raise (...) at ../sysdeps/posix/raise.c:26
#5  <signal handler called>
#6  0x00007f14 in mkl_blas_sgemm () from /venv/torch/lib/libtorch_cpu.so
#7  0x00007f15 in at::native::addmm_impl_cpu_(at::Tensor&, at::Tensor const&) () from /venv/torch/lib/libtorch_cpu.so
#8  0x00007f16 in at::_ops::addmm_out::redispatch(c10::DispatchKeySet, at::Tensor const&) () from /venv/libtorch_cpu.so
#9  0x00007f17 in at::_ops::linear::call(at::Tensor const&) () from /venv/torch/lib/libtorch_cpu.so
"""

ABORTED = """\
== crash: signal 6 in thread 5, 2026-01-01 00:00:00 +0000
Thread 1 (Thread 0x7f02 (LWP 5) "python"):
#0  <signal handler called>
#1  __pthread_kill_implementation (...) at ./nptl/pthread_kill.c:44
#2  0x00007f13 in __GI_raise (...) at ../sysdeps/posix/raise.c:26
#3  0x00007f14 in __GI_abort () at ./stdlib/abort.c:79
#4  0x00007f15 in __libc_message (...) at ../sysdeps/posix/libc_fatal.c:155
#5  0x00007f15 in malloc_printerr (...) at ./malloc/malloc.c:5660
#6  0x00007f15 in _int_free (...) at ./malloc/malloc.c:4435
#7  0x00007f15 in ?? () from /lib/other.so
#8  my_op (...) at /home/me/op.cpp:12
"""


def test_the_crashing_threads_python_frames_come_innermost_first():
    frames = python_frames(PYTHON, section="crash")
    assert [(frame.function, frame.line) for frame in frames] == [("linear", 9), ("forward", 41), ("<module>", 12)]


def test_stacks_of_a_hang_are_distinguished_from_those_of_a_later_crash():
    assert [frame.function for frame in python_frames(PYTHON, section="hang")] == ["wait", "main"]


def test_without_a_current_thread_the_main_one_is_taken_which_is_the_last():
    text = PYTHON.replace("Current thread", "Thread")
    assert python_frames(text, section="crash")[0].function == "linear"


def test_the_users_frame_is_neither_torchs_nor_pythons_nor_ours():
    frame = users_frame(python_frames(PYTHON, section="crash"))
    assert frame is not None
    assert frame.source == "project/model.py:41"
    waiting = users_frame(python_frames(PYTHON, section="hang"))
    assert waiting is not None
    assert waiting.line == 30
    frames = frames_in(['  File "/home/me/src/roundoff/watch/process/supervise.py", line 51 in supervise'])
    assert users_frame(frames) is None
    stdlib = frames_in(
        ['  File "/root/.pyenv/versions/3.11.7/lib/python3.11/ctypes/__init__.py", line 519 in string_at']
    )
    assert users_frame(stdlib) is None


def test_frames_of_another_package_are_the_users():
    frames = frames_in(['  File "/v/lib/python3.11/site-packages/transformers/models/x.py", line 5, in forward'])
    assert users_frame(frames) is frames[0]


def test_native_frames_begin_below_the_signal():
    frames = native_frames(NATIVE, section="crash", thread=None)
    assert [frame.text for frame in frames[:2]] == [
        "mkl_blas_sgemm (libtorch_cpu.so)",
        "at::native::addmm_impl_cpu_ (libtorch_cpu.so)",
    ]


def test_a_name_without_its_arguments_keeps_its_end():
    text = NATIVE.replace(
        "mkl_blas_sgemm ()", "at::native::(anonymous namespace)::softmax_kernel(at::Tensor const&) ()"
    )
    frame = native_frames(text, section="crash", thread=None)[0]
    assert frame.text == "at::native::softmax_kernel (libtorch_cpu.so)"


def test_the_machinery_of_an_abort_is_left_out():
    frames = native_frames(ABORTED, section="crash", thread=None)
    assert [frame.text for frame in frames] == ["my_op (op.cpp:12)"]


def test_the_innermost_op_is_named_without_its_overload():
    assert aten_op(native_frames(NATIVE, section="crash", thread=None)) == "aten.addmm"
    other = native_frames(NATIVE.replace("in thread 102", "in thread 101"), section="crash", thread=None)
    assert aten_op(other) == "aten.add"


def test_a_collective_is_named_by_its_python_function_or_its_native_one():
    path = "/v/site-packages/torch/distributed/distributed_c10d.py"
    python = frames_in(
        [f'  File "{path}", line 5 in _helper', f'  File "{path}", line 9 in all_reduce', '  File "/a.py", line 1 in f']
    )
    assert collective(python, []) == "c10d.all_reduce"
    text = NATIVE.replace("mkl_blas_sgemm ()", "c10d::ops::allreduce_(c10d::Work) ()")
    assert collective([], native_frames(text, section="crash", thread=None)) == "c10d.allreduce_"
    text = NATIVE.replace("mkl_blas_sgemm ()", "c10d::Reducer::finalize_backward() ()")
    assert collective([], native_frames(text, section="crash", thread=None)) == "c10d.allreduce_"
    assert collective([], native_frames(NATIVE, section="crash", thread=None)) is None


def test_no_stacks_give_no_frames():
    assert python_frames("", section="crash") == []
    assert native_frames("", section="hang", thread=4) == []
