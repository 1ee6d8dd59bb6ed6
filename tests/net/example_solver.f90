! A solver of the heat equation trains a network on its own fields, distributed over the ranks: from a field
! the network predicts the temperature in the middle ten time steps later. docs/fortran.md contains this file.
program solver
   use, intrinsic :: iso_fortran_env, only: real64
   use hvtrain
   use mpi_f08
   implicit none
   integer, parameter :: fields = 60, n = 8
   real(real64), allocatable :: u(:, :, :, :), before(:, :, :, :)
   real(real64) :: loss
   integer :: rank, ranks, first, mine, i, t
   type(hvt_net) :: net

   call MPI_Init()
   call MPI_Comm_rank(MPI_COMM_WORLD, rank)
   call MPI_Comm_size(MPI_COMM_WORLD, ranks)
   first = fields*rank/ranks
   mine = fields*(rank + 1)/ranks - first
   u = reshape([(mod((first*n*n + i)*7919, 1000)/1000.0_real64, i=0, mine*n*n - 1)], [n, n, 1, mine])
   call net%open("resnet20", "height=8 width=8 channels=1 outputs=1 loss=mse lr=0.005 shard=10", MPI_COMM_WORLD)
   do t = 0, 100
      if (mod(t, 10) == 0) then
         if (t > 0) call net%train(before, [u(n/2 + 1, n/2 + 1, 1, :)], loss=loss) ! an update with all fields
         before = u
      end if
      do i = 1, mine
         call advance(u(:, :, 1, i))
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
