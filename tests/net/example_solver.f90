! A solver of the heat equation trains a U-Net on its own fields, distributed over the ranks: from a field the
! network predicts the field ten time steps later. Arguments: the step at which an earlier run was saved, and
! the last step. docs/fortran.md contains this file.
program solver
   use, intrinsic :: iso_fortran_env, only: real64
   use hvtrain
   use mpi_f08
   implicit none
   integer, parameter :: fields = 30, n = 32
   real(real64), allocatable :: u(:, :, :), before(:, :, :)
   real(real64) :: loss
   integer :: rank, ranks, first, mine, i, t, begin = 0, end = 100
   character(len=20) :: word
   type(hvt_net) :: net

   call get_command_argument(1, word)
   if (word /= "") read (word, *) begin
   call get_command_argument(2, word)
   if (word /= "") read (word, *) end
   call MPI_Init()
   call MPI_Comm_rank(MPI_COMM_WORLD, rank)
   call MPI_Comm_size(MPI_COMM_WORLD, ranks)
   first = fields*rank/ranks
   mine = fields*(rank + 1)/ranks - first
   u = reshape([(mod((first*n*n + i)*7919, 1000)/1000.0_real64, i=0, mine*n*n - 1)], [n, n, mine])
   call net%open("unet.pt2", "loss=mse optimizer=adam lr=0.001 shard=6", MPI_COMM_WORLD)
   if (begin > 0) call net%load("surrogate")
   do t = 0, end
      if (mod(t, 10) == 0) then
         if (t > begin) call net%train(before, u, loss=loss) ! an update with the fields of all ranks
         before = u
      end if
      do i = 1, mine
         call advance(u(:, :, i))
      end do
   end do
   call net%save("surrogate")
   if (rank == 0) write (*, "(a, f0.9)") "mean squared error 0", loss
   call net%close()
   call MPI_Finalize()

contains

   subroutine advance(f)
      real(real64), intent(inout) :: f(n, n)
      integer, parameter :: m = n - 1

      f(2:m, 2:m) = f(2:m, 2:m) + 0.2_real64*(f(2:m, 3:n) + f(2:m, :n - 2) + f(3:n, 2:m) + f(:n - 2, 2:m) &
                                              - 4*f(2:m, 2:m))
   end subroutine advance
end program solver
